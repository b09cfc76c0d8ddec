"""Weights are reordered by heads as on a single rank, also where shards end within a head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_shards_that_cut_heads() -> None:
    script = str(Path(__file__).with_name("run_heads.py"))
    argv = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", script]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"fsdp": 0.0, "hsdp": 0.0, "fsdp and tp": 0.0}
