from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backend_fixtures import experiment, plugins, problems  # noqa: F401

from primus_core.testing.fixtures import primus_project  # noqa: F401

TINY = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "group_query_attention": True,
    "num_query_groups": 2,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "max_position_embeddings": 64,
    "seq_length": 64,
    "mock_data": True,
    "split": "90,5,5",
    "vocab_size": 256,
    "num_workers": 0,
    "train_iters": 6,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "lr": 1e-3,
    "min_lr": 1e-4,
    "lr_decay_style": "cosine",
    "log_interval": 1,
    "eval_iters": 0,
    "eval_interval": 1000,
    "save_interval": 3,
}
"""A small Llama, in Megatron's argument names."""

type Results = dict[str, dict[str, Any]]


def train_cases(folder: Path, ranks: int, cases: dict[str, dict[str, Any]]) -> Results:
    """Train ``{name: values over TINY}`` on so many ranks; returns what each reported."""
    folder.mkdir(parents=True, exist_ok=True)
    given, out = folder / "cases.json", folder / "out.json"
    given.write_text(json.dumps({name: TINY | values for name, values in cases.items()}))
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    script = Path(__file__).with_name("run_cases.py")
    argv = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    done = subprocess.run(
        [sys.executable, *argv, str(given), str(out)], env=env, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("[rank")] or [done.stderr[-3000:]]
    assert done.returncode == 0, "\n".join(said[-40:])
    return json.loads(out.read_text())


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    def train(ranks: int, cases: dict[str, dict[str, Any]]) -> Results:
        return train_cases(tmp_path_factory.mktemp("cases"), ranks, cases)

    return train


# --- experiments, resolved and checked ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def head() -> str:
    """Five lines before the first override, which stands in column 7."""
    return "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3.1_8B.yaml\n    overrides:\n"
