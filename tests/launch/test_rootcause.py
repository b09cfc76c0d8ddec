from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from primus_core.errors import ExitCode
from primus_core.launch.rootcause import Ending, explain, seen_by_torchrun


def state(attempt: Path, rank: int, phase: str = "forward", when: float = 1.0) -> None:
    (attempt / "ranks").mkdir(exist_ok=True)
    text = json.dumps({"rank": rank, "pid": 1, "host": f"node{rank}", "phase": phase, "step": 7, "time": when})
    (attempt / f"ranks/rank-{rank}.json").write_text(text)


def error(attempt: Path, rank: int, when: float, message: str = "ValueError: wrong", code: int = 1) -> None:
    (attempt / "errors").mkdir(exist_ok=True)
    known = {"rank": rank, "time": when, "phase": "forward", "step": 7, "exit_code": code, "log_size": 0}
    text = json.dumps(known | {"error": message, "frame": "mine.py:3 in f", "host": f"node{rank}"})
    (attempt / f"errors/rank-{rank}.json").write_text(text)


def ended(attempt: Path, **statuses: int) -> None:
    (attempt / "logs").mkdir(exist_ok=True)
    lines = ["W1130 something else"]
    for name, status in statuses.items():
        about = {"state": "FAILED", "global_rank": int(name[1:]), "metadata": json.dumps({"exit_code": [status]})}
        lines.append("noise " + json.dumps({"name": "torchelastic.worker.status.FAILED", "metadata": about}))
    (attempt / "logs/launcher.log").write_text("\n".join(lines))


def story(attempt: Path, status: int = 1, **more: tuple[int, ...]) -> tuple[ExitCode, list[str]]:
    code, text = explain(attempt, Ending(status=status, **more))
    return code, text.splitlines()


def test_earliest_error_wins(tmp_path):
    for rank in range(3):
        state(tmp_path, rank)
    error(tmp_path, 0, 20.0, "RuntimeError: connection closed")
    error(tmp_path, 2, 10.0, code=2)
    ended(tmp_path, r0=1, r1=-15, r2=1)
    code, lines = story(tmp_path)
    assert code == ExitCode.USER_INPUT
    assert lines[:3] == [
        "rank 2 of 3 failed first on node2, in phase 'forward' at step 7",
        "  ValueError: wrong",
        "  at mine.py:3 in f",
    ]
    assert lines[-4:-1] == [
        "2 other ranks ended after it:",
        "  rank 0: RuntimeError: connection closed",
        "  rank 1: SIGTERM",
    ]


@pytest.mark.parametrize(("status", "said"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (7, "exit code 7")])
def test_silent_death_wins_over_exceptions(tmp_path, status, said):
    for rank in range(2):
        state(tmp_path, rank)
    error(tmp_path, 0, 5.0)
    ended(tmp_path, r0=1, r1=status)
    code, lines = story(tmp_path)
    assert code == ExitCode.TRAINING_FAILED
    assert lines[0].startswith("rank 1 of 2 failed first on node1")
    assert said in lines[1]


def test_death_after_the_end_is_not_to_blame(tmp_path):
    state(tmp_path, 0)
    state(tmp_path, 1, "finished")
    error(tmp_path, 0, 5.0)
    ended(tmp_path, r0=1, r1=-6)
    assert story(tmp_path)[1][0].startswith("rank 0 of 2 failed first")


def test_exit_without_a_word(tmp_path):
    state(tmp_path, 0)
    ended(tmp_path, r0=7)
    assert "  ended with exit code 7 and said nothing" in story(tmp_path)[1]


def test_a_full_disk_is_why_nothing_was_said(tmp_path, monkeypatch):
    state(tmp_path, 0)
    ended(tmp_path, r0=1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=1, used=1, free=0))
    assert f"  ended with exit code 1 and said nothing; the disk of {tmp_path} is full" in story(tmp_path)[1]


def test_crash_after_the_end_is_told_and_no_failure(tmp_path):
    state(tmp_path, 0, "finished")
    state(tmp_path, 1, "finished")
    ended(tmp_path, r0=-15, r1=-6)
    code, lines = story(tmp_path)
    assert code == ExitCode.DONE
    assert lines == ["all ranks finished; after that, while Python shut down: rank 0: SIGTERM, rank 1: SIGABRT"]
    state(tmp_path, 0, "save")
    assert story(tmp_path)[0] == ExitCode.TRAINING_FAILED


def test_launcher_that_never_got_anywhere(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/launcher.log").write_text("No module named torch\n")
    _, lines = story(tmp_path)
    assert lines[0] == "the launcher ended with exit code 1, before any rank was there"
    assert "  | No module named torch" in lines


def test_signals_from_outside_are_no_failure_of_a_rank(tmp_path):
    state(tmp_path, 0)
    ended(tmp_path, r0=-15)
    assert story(tmp_path, signals=(2, 2))[1][0] == "interrupted: SIGINT"


def test_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    ended(tmp_path, r0=-9)
    log = tmp_path / "logs/launcher.log"
    log.write_text(log.read_text() + '\n{"name": "torchelastic.worker.status.FAILED", "meta')
    assert list(seen_by_torchrun(log)) == [(0, -9)]
