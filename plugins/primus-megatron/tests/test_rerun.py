"""A run of the real engine, repeated from its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def primus(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "primus"), *words]
    environ = os.environ | {"PRIMUS_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_losses_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    assert primus(tmp_path, "init", "--backend", "megatron", "first.yaml").returncode == 0
    words = (
        "--nproc",
        "2",
        "--mock_data",
        "true",
        "--train_iters",
        "4",
        "--log_interval",
        "1",
        "--save",
        "checkpoints",
    )
    first = primus(tmp_path, "train", "pretrain", "--config", "first.yaml", *words)
    assert first.returncode == 0, first.stderr
    (experiment,) = (tmp_path / "output").glob("*/*/first")
    again = primus(tmp_path, "rerun", str(experiment))
    assert again.returncode == 0, again.stdout + again.stderr
    told = again.stderr.splitlines()
    assert "first/0001 again: code, versions, environment, data and hardware are the same" in told
    assert told[-1] == "losses of 4 steps are equal to the last bit"
