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

TINY: dict[str, Any] = {
    "model": {"name": "llama3", "flavor": "debugmodel", "dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 256},
    "training": {
        "mock_data": True,
        "steps": 4,
        "local_batch_size": 4,
        "seq_len": 32,
        "mixed_precision_param": "float32",
    },
    "metrics": {"log_freq": 1},
    "lr_scheduler": {"warmup_steps": 2},
    "activation_checkpoint": {"mode": "none"},
    "debug": {"seed": 42},
}
"""A small Llama, in the names of JobConfig."""

type Results = dict[str, dict[str, Any]]


def over(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Nested values over others."""
    merged = {
        name: over(values[name], value) if isinstance(value, dict) and isinstance(values.get(name), dict) else value
        for name, value in more.items()
    }
    return values | merged


def train_cases(folder: Path, ranks: int, cases: dict[str, dict[str, Any]]) -> Results:
    """Train ``{name: values over TINY}`` on so many ranks; returns what each reported. A name as a case's ``model``
    takes the flavor of that model that is for tests, as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given, out = folder / "cases.json", folder / "out.json"
    for values in cases.values():
        if isinstance(name := values.get("model"), str):
            name, _, flavor = name.partition("/")
            values["model"] = {"name": name, "flavor": flavor or "debugmodel"}
    tiny = dict.fromkeys(cases, TINY)
    for name, values in cases.items():
        if "name" in values.get("model", {}):
            tiny[name] = {key: value for key, value in TINY.items() if key != "model"}
    given.write_text(json.dumps({name: over(tiny[name], values) for name, values in cases.items()}))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("run_cases.py")
    argv = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    done = subprocess.run(
        [sys.executable, *argv, str(given), str(out)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
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
    return "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: llama3.1_8B.yaml\n    overrides:\n"
