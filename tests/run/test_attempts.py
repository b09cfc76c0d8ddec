from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from toy_runs import evaluated, started, steps, write_attempt

from primus_core.errors import UserError
from primus_core.run import attempts
from primus_core.run.attempts import Attempt
from primus_core.run.heartbeat import Heartbeat
from primus_core.run.history import History


def beat(folder, phase, step=None, **changed):
    """A rank's heartbeat, as if from another process or machine."""
    Heartbeat(folder / "ranks", 0, 1).beat(phase, step)
    file = folder / "ranks/rank-0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def test_attempts_are_found_below_a_workspace_in_order(tmp_path):
    for name in ("b/u/two/attempts/0001", "a/u/one/attempts/0010", "a/u/one/attempts/0009"):
        write_attempt(tmp_path / name)
    (tmp_path / "a/u/one/attempts/notes").mkdir()
    (tmp_path / "a/u/one/checkpoints/attempts/0001").mkdir(parents=True)
    assert [attempt.name for attempt in attempts.find(tmp_path)] == ["one/0009", "one/0010", "two/0001"]
    assert attempts.latest(tmp_path / "a/u/one").folder.name == "0010"
    assert attempts.latest(tmp_path / "a/u/one/attempts/0009").folder.name == "0009"
    with pytest.raises(UserError, match=r"is not the folder of a run.*such as .*two/attempts/0001"):
        attempts.latest(tmp_path)


def test_status_of_what_ended(tmp_path):
    done = Attempt(write_attempt(tmp_path / "attempts/0001", result={"exit_code": 0, "root_cause": None}))
    failed = Attempt(write_attempt(tmp_path / "attempts/0002", result={"exit_code": 4, "root_cause": "rank 1 hangs"}))
    stopped = {"exit_code": 1, "root_cause": "interrupted: SIGTERM\nrun folder: x"}
    stopped = Attempt(write_attempt(tmp_path / "attempts/0003", result=stopped))
    assert [str(each.status()) for each in (done, failed, stopped)] == [
        "done",
        "failed: exit code 4",
        "failed: interrupted: SIGTERM",
    ]


def test_status_of_what_left_no_result(tmp_path):
    folder = write_attempt(tmp_path / "attempts/0001")
    assert str(Attempt(folder).status()) == "killed: starting"
    beat(folder, "forward", 7)
    assert str(Attempt(folder).status()) == "killed: forward, step 7"
    mark = os.environ | {"PRIMUS_ATTEMPT": str(folder)}
    child = subprocess.Popen([sys.executable, "-c", "input()"], env=mark, stdin=subprocess.PIPE)
    assert str(Attempt(folder).status()) == "running: forward, step 7"
    child.communicate(b"\n")
    beat(folder, "finished")
    assert str(Attempt(folder).status()) == "done"
    beat(folder, "forward", 7, host="elsewhere", time=0.0)
    assert str(Attempt(folder).status()).startswith("unknown: on elsewhere, last sign ")


def test_supervisor_that_is_still_there_means_running(tmp_path):
    host = {"name": socket.gethostname(), "pid": os.getpid()}
    folder = write_attempt(tmp_path / "attempts/0001", about={"host": host})
    child = subprocess.Popen([sys.executable, "-c", "input()", "primus"], stdin=subprocess.PIPE)
    (folder / "run.json").write_text(json.dumps({"host": host | {"pid": child.pid}}))
    assert Attempt(folder).status().state == "running"
    child.communicate(b"\n")
    assert Attempt(folder).status().state == "killed"


def test_steps_that_were_repeated_count_as_repeated(tmp_path):
    first = [started(), *steps(1, 6), evaluated(4, 1.0), evaluated(6, 0.9)]
    second = [started(), *steps(5, 8, loss=lambda step: 40.0 / step), evaluated(8, 0.5)]
    for number, events in ((1, first), (2, second)):
        write_attempt(tmp_path / f"attempts/{number:04}", events)
    history = History(attempts.named(tmp_path))
    assert history.curve("loss") == [
        (1, 4.0),
        (2, 2.0),
        (3, 4 / 3),
        (4, 1.0),
        (5, 8.0),
        (6, 40 / 6),
        (7, 40 / 7),
        (8, 5),
    ]
    assert history.repeated("loss") == [[(4, 1.0), (5, 0.8), (6, 4 / 6)]]
    assert history.curve("loss", "valid") == [(4, 1.0), (8, 0.5)]
    assert history.restarts == [(5, "0002")]
    assert history.last("loss") == 5.0


def test_restarts_inside_an_attempt_are_seen(tmp_path):
    write_attempt(tmp_path / "attempts/0001", [started(), *steps(1, 3), started(), *steps(3, 4)])
    history = History(attempts.named(tmp_path))
    assert [step for step, _ in history.curve("loss")] == [1, 2, 3, 4]
    assert history.restarts == [(3, "0001")]


def test_median_leaves_the_first_step_of_each_start_out(tmp_path):
    slow = steps(1, 4, step_time=lambda step: 60.0 if step == 1 else float(step))
    write_attempt(tmp_path / "attempts/0001", [started(), *slow])
    history = History(attempts.named(tmp_path))
    assert history.median("step_time") == 3.0
    assert history.median("mfu") is None
