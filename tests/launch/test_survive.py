"""Faults in real runs of the toy: what ends, what goes on, and what is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_runs import Bench, bench

RUN = ("train", "pretrain", "--config", "toy.yaml", "steps=8", "save_interval=2")
BAD = ("bad_rank=1", "bad_step=5", "once=true")


@pytest.fixture
def desk(tmp_path: Path) -> Bench:
    return bench(tmp_path)


def events(desk: Bench, attempt: int, kind: str) -> list[dict]:
    lines = (desk.experiment() / f"attempts/{attempt:04}/metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def steps(desk: Bench, attempt: int) -> list[int]:
    return [event["step"] for event in events(desk, attempt, "step")]


def attempts(desk: Bench) -> int:
    return len(list((desk.experiment() / "attempts").iterdir()))


def left_over(desk: Bench) -> list[int]:
    mark = f"PRIMUS_ATTEMPT={desk.folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_new_attempt_goes_on_after_a_rank_was_killed(desk: Bench):
    done = desk.run("direct", "--nproc", "2", "--restart", "2", "--", *RUN, *BAD, "bad_way=kill", "collective=true")
    assert done.returncode == 0, done.stderr
    assert "restart 1, from the last complete checkpoint; 1 left" in done.stderr
    assert "goes on after step 4" in done.stdout
    assert (steps(desk, 1), steps(desk, 2)) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert left_over(desk) == []


def test_torchrun_starts_ranks_again(desk: Bench):
    done = desk.run(
        "direct", "--nproc", "2", "--max-restarts", "1", "--", *RUN, *BAD, "bad_way=raise", "collective=true"
    )
    assert done.returncode == 0, done.stderr
    assert attempts(desk) == 1
    assert steps(desk, 1) == [1, 2, 3, 4, 5, 6, 7, 8]
    errors = desk.experiment() / "attempts/0001/errors"
    assert (errors / "restart-1-rank-1.json").exists()
    assert not (errors / "rank-1.json").exists()


def test_a_crash_loop_ends(desk: Bench):
    done = desk.run("direct", "--restart", "9", "--", *RUN, "bad_rank=0", "bad_step=3")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("failed 3 times at step 3; not started again")
    assert attempts(desk) == 3


def test_wrong_environments_are_not_tried_again(desk: Bench):
    done = desk.run("direct", "--restart", "9", "--", *RUN, "bad_rank=0", "bad_way=environment")
    assert done.returncode == 3
    assert attempts(desk) == 1


def test_a_stopped_rank_is_a_hang(desk: Bench):
    began = time.monotonic()
    done = desk.run(
        "direct", "--nproc", "2", "--hang-timeout", "3", "--", *RUN, *BAD, "bad_way=stopped", "collective=true"
    )
    assert done.returncode == 4, done.stderr
    assert time.monotonic() - began < 60
    first, *rest = done.stderr.splitlines()
    assert first.startswith("hang: rank 1 did not finish step 5: in forward for ")
    assert first.endswith(" s, its process is stopped (SIGSTOP)")
    assert any(line.split()[:3] == ["0", "5", "forward"] for line in rest)
    assert "all_reduce" in (desk.experiment() / "attempts/0001/hang/rank-0.txt").read_text()
    assert left_over(desk) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends(desk: Bench, number: signal.Signals):
    child = start_slow(desk, "collective=true")
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    last = steps(desk, 1)[-1]
    assert f"interrupted: {number.name}; stopped in order after step {last}, with the checkpoint of step {last}" in err
    assert (desk.experiment() / f"checkpoints/step-{last}/state.json").exists()
    assert attempts(desk) == 1, "it was asked to end, so it is not started again"
    assert left_over(desk) == []


def test_a_second_signal_ends_at_once(desk: Bench):
    child = start_slow(desk, "bad_rank=0", "bad_way=hang", "bad_step=2")
    child.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    began = time.monotonic()
    child.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert child.returncode == 1
    assert left_over(desk) == []


def start_slow(desk: Bench, *more: str) -> subprocess.Popen[str]:
    words = ("train", "pretrain", "--config", "toy.yaml", "steps=1000", "save_interval=1000", "seconds=0.1", *more)
    child = desk.start("direct", "--nproc", "2", "--restart", "1", "--", *words)
    ranks = desk.experiment() / "attempts/0001/ranks"
    until(
        lambda: (
            len(list(ranks.glob("*.json"))) == 2
            and all(file.read_text().count('"stops": true') for file in ranks.glob("*.json"))
        )
    )
    until(lambda: all(json.loads(file.read_text())["step"] >= 2 for file in ranks.glob("*.json")))
    return child


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


NAN = ("bad_rank=0", "bad_step=5", "bad_way=nan")


def test_a_bad_loss_stops(desk: Bench):
    done = desk.run("direct", "--restart", "2", "--", *RUN, *NAN, "launch.on_bad_loss=stop")
    assert done.returncode == 1
    assert "  step 5: the loss is nan" in done.stderr
    assert "not started again: the loss would be as bad" in done.stderr
    assert attempts(desk) == 1


def test_a_bad_loss_is_rolled_back(desk: Bench):
    done = desk.run(*RUN, *NAN, "launch.on_bad_loss=rollback")
    assert done.returncode == 0, done.stderr
    assert "restart 1, from the last complete checkpoint, without step 5; 2 left" in done.stderr
    assert steps(desk, 2) == [6, 7, 8]


def test_by_default_the_engine_decides(desk: Bench):
    done = desk.run(*RUN, *NAN)
    assert done.returncode == 0
    assert steps(desk, 1) == [1, 2, 3, 4, 5, 6, 7, 8]
