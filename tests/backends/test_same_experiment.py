"""One experiment, two engines: the same small Llama, weights, tokens and optimizer through Megatron and torchtitan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("primus_megatron")
pytest.importorskip("primus_torchtitan")

STEPS = 50
TITAN: dict[str, Any] = {
    "model": {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 4096},
    "training": {
        "mock_data": False, "dataset": "tokens", "dataset_path": "pydoc", "steps": STEPS,
        "local_batch_size": 8, "seq_len": 128, "mixed_precision_param": "float32",
    },
    "optimizer": {"lr": 1e-3, "weight_decay": 0.0},
    "lr_scheduler": {"warmup_steps": 0, "min_lr_factor": 1.0},
    "metrics": {"log_freq": 1},
    "compile": {"enable": False},
    "debug": {"seed": 1234},
    "checkpoint": {"enable": True, "initial_load_in_hf": True, "initial_load_path": "weights"},
}
MEGATRON: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4,
    "group_query_attention": True, "num_query_groups": 2, "swiglu": True, "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-5, "add_bias_linear": False, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "position_embedding_type": "rope", "rotary_base": 500000, "use_rope_scaling": True,
    "untie_embeddings_and_output_weights": True, "max_position_embeddings": 128, "seq_length": 128,
    "train_data_path": ["pydoc"], "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "pydoc-tokenizer",
    "vocab_size": 4096, "make_vocab_size_divisible_by": 64, "dataloader_type": "single", "num_workers": 0,
    "train_iters": STEPS, "micro_batch_size": 8, "global_batch_size": 8, "seed": 1234, "bf16": False,
    "lr": 1e-3, "min_lr": 1e-3, "lr_decay_style": "constant", "lr_warmup_iters": 0, "weight_decay": 0.0,
    "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "clip_grad": 1.0,
    "log_interval": 1, "eval_iters": 0, "load": "megatron-weights", "finetune": True,
    "no_load_optim": True, "no_load_rng": True,
}


def experiment(name: str, **module: Any) -> str:
    return json.dumps(
        {
            "work_group": "tests", "user_name": "tests", "exp_name": name, "workspace": "runs",
            "modules": {"pre_trainer": {"config": "pre_trainer.yaml", **module}},
        }
    )


def steps(folder: Path, name: str) -> list[dict[str, float]]:
    attempt = max((folder / "runs/tests/tests" / name / "attempts").glob("[0-9]*"))
    events = map(json.loads, (attempt / "metrics.jsonl").read_text().splitlines())
    return [event for event in events if "grad_norm" in event]


@pytest.mark.slow
def test_two_engines_have_the_same_curve(tmp_path: Path) -> None:
    def primus(*words: str) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "PRIMUS_PLATFORM": "cpu"}
        argv = [sys.executable, "-m", "primus_core", *words]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    (tmp_path / "titan.yaml").write_text(
        experiment("titan", framework="torchtitan", model="llama3_debug.yaml", overrides=TITAN)
    )
    (tmp_path / "megatron.yaml").write_text(experiment("megatron", framework="megatron", overrides=MEGATRON))
    primus("data", "prepare", "pydoc", "--output", "pydoc", "--train-tokenizer", "4096")
    first = (
        "create_seed_checkpoint=true",
        "last_save_in_hf=true",
        "initial_load_in_hf=false",
        "initial_load_path=null",
    )
    made = (f"checkpoint.{each}" for each in first)
    primus("train", "pretrain", "--config", "titan.yaml", "exp_name=seed", *made)
    (tmp_path / "runs/tests/tests/seed/checkpoints/step-0").rename(tmp_path / "weights")
    primus("convert", "weights", "--to", "megatron", "--output", "megatron-weights", "--config", "megatron.yaml")
    for engine in ("titan", "megatron"):
        primus("train", "pretrain", "--config", f"{engine}.yaml")
    titan, megatron = steps(tmp_path, "titan"), steps(tmp_path, "megatron")
    assert len(titan) == len(megatron) == STEPS
    assert titan[0]["loss"] == pytest.approx(megatron[0]["loss"], abs=1e-4)
    for key in ("loss", "grad_norm", "tokens"):
        assert [step[key] for step in titan] == pytest.approx([step[key] for step in megatron], rel=1e-4)
