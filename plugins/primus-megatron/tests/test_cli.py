"""Whole runs through the command line: real torchrun, two ranks, the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from primus_megatron.checkpoints import latest

EXPERIMENT = """\
work_group: team
user_name: me
exp_name: tiny
workspace: ./output
launch:
  nproc_per_node: {ranks}
modules:
  pre_trainer:
    framework: megatron
    model: llama3.2_1B.yaml
    overrides:
      num_layers: 2
      hidden_size: {hidden}
      ffn_hidden_size: 256
      num_attention_heads: 4
      num_query_groups: 2
      max_position_embeddings: 64
      seq_length: 64
      mock_data: true
      vocab_size: 256
      num_workers: 0
      train_iters: 6
      micro_batch_size: 2
      global_batch_size: 8
      lr: 1.0e-3
      min_lr: 1.0e-4
      lr_warmup_iters: 0
      eval_iters: 1
      eval_interval: 3
      save: checkpoints
      save_interval: 3
      auto_continue_train: true
"""


class Bench:
    def __init__(self, folder: Path, ranks: int, hidden: int = 64) -> None:
        self.folder = folder
        self.run = folder / "output/team/me/tiny"
        (folder / "tiny.yaml").write_text(EXPERIMENT.format(ranks=ranks, hidden=hidden))

    def start(self, *words: str, file: str | None = None) -> subprocess.Popen[str]:
        own = ("--primusfile", file) if file else ()
        argv = [sys.executable, "-m", "primus_core", *own, "train", "pretrain", "--config", "tiny.yaml", *words]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(argv, cwd=self.folder, env=env, text=True, stdout=-1, stderr=-2)

    def train(self, *words: str, file: str | None = None) -> tuple[int, str]:
        child = self.start(*words, file=file)
        out, _ = child.communicate()
        return child.returncode, out

    def events(self, attempt: int, kind: str) -> list[dict[str, Any]]:
        lines = (self.run / f"attempts/{attempt:04d}/metrics.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_two_ranks_stop_and_go_on(tmp_path: Path):
    bench = Bench(tmp_path, ranks=2)
    code, out = bench.train("--exit_interval", "3")
    assert code == 0, out
    assert [event["step"] for event in bench.events(1, "step")] == [1, 2, 3]
    assert [event["step"] for event in bench.events(1, "checkpoint")] == [3]
    assert [(event["step"], event["split"]) for event in bench.events(1, "eval")] == [(3, "valid")]
    assert "Transformer Engine is not installed" in out

    code, out = bench.train()
    assert code == 0, out
    assert "goes on after step 3" in out
    assert [event["step"] for event in bench.events(2, "step")] == [4, 5, 6]
    assert latest(bench.run / "checkpoints") == 6
    patches = json.loads((bench.run / "attempts/0002/patches.json").read_text())
    assert {row["status"] for row in patches if row["name"].startswith("megatron.cpu.")} == {"applied"}


@pytest.mark.slow
def test_killed_while_it_saves(tmp_path: Path):
    """The checkpoint before stays the latest, and the next run goes on from it to the same end."""
    bench = Bench(tmp_path, ranks=2, hidden=1024)
    child = bench.start()
    while not (bench.run / "checkpoints/iter_0000006").exists():
        assert child.poll() is None, child.communicate()[0]
        time.sleep(0.002)
    os.kill(json.loads((bench.run / "attempts/0001/ranks/rank-0.json").read_text())["pid"], signal.SIGKILL)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 1, out
    assert latest(bench.run / "checkpoints") == 3

    code, out = bench.train()
    assert code == 0, out
    assert "iter_0000006: it was not saved to its end" in out
    assert "goes on after step 3" in out
    assert latest(bench.run / "checkpoints") == 6


# --- faults -----------------------------------------------------------------------------------------------------------

POISON = """\
from primus_core.plugins import hookimpl

@hookimpl
def primus_model_built(run, model):
    passes = 0

    def poison(module, given, losses):
        nonlocal passes
        passes += module.training
        return losses * float("nan") if passes == 17 and module.training else losses

    model.register_forward_hook(poison)
"""
"""Micro batch 17 of an attempt is the first of step 5."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, ranks=1)
    (tmp_path / "Primusfile.py").write_text(POISON)
    return bench


FEW = ("--eval_iters", "0", "--save_interval", "2", "--auto_continue_train", "false")


def steps(bench: Bench, attempt: int) -> list[int]:
    return [event["step"] for event in bench.events(attempt, "step")]


@pytest.mark.slow
def test_a_bad_loss_is_rolled_back(bench: Bench):
    code, out = bench.train(*FEW, "launch.on_bad_loss=rollback", file="Primusfile.py")
    assert code == 0, out
    assert "step 5: the loss is nan" in out
    assert "restart 1, from the last complete checkpoint, without step 5; 2 left" in out
    assert "goes on after step 4" in out
    assert (steps(bench, 1), steps(bench, 2)) == ([1, 2, 3, 4], [6])
    assert latest(bench.run / "checkpoints") == 6


@pytest.mark.slow
def test_a_step_with_a_bad_loss_is_left_out(bench: Bench):
    code, out = bench.train(*FEW, "launch.on_bad_loss=skip", file="Primusfile.py")
    assert code == 0, out
    assert "step 5 is left out: the loss is nan" in out
    last = bench.events(1, "step")[-1]
    assert last["step"] == 6
    assert last["loss"] > 0


@pytest.mark.slow
def test_a_signal_saves_and_a_damaged_checkpoint_is_passed_over(tmp_path: Path):
    bench = Bench(tmp_path, ranks=2)
    child = bench.start("--train_iters", "4000", "--eval_iters", "0", "--save_interval", "3", "--keep_checkpoints", "2")
    checkpoints = bench.run / "checkpoints"
    limit = time.monotonic() + 120
    while (latest(checkpoints) or 0) < 9:
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 1
    last = latest(checkpoints)
    assert f"interrupted: SIGTERM; stopped in order after step {last}, with the checkpoint of step {last}" in out
    kept = sorted(int(path.name.removeprefix("iter_")) for path in checkpoints.glob("iter_*"))
    assert len(kept) == 2
    assert kept[-1] == last

    tensors = next((checkpoints / f"iter_{last:07d}").glob("*.distcp"))
    tensors.write_bytes(tensors.read_bytes()[:1000])
    code, out = bench.train("--train_iters", str(kept[0] + 1), "--eval_iters", "0")
    assert code == 0, out
    assert f"WARNING: the checkpoint of step {last} cannot be read: {tensors.name} has 1000 bytes" in out
    assert f"goes on after step {kept[0]}" in out
