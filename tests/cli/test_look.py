"""``primus runs``, ``logs``, ``compare`` and ``rerun`` with real runs of the toy backend."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest
from toy_runs import bench, steps, write_attempt


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    found = bench(tmp_path_factory.mktemp("done"))
    assert found.train("--nproc", "2", "--collective", "--steps", "6", "--noise", "5").returncode == 0
    assert found.train("--steps", "2", "--bad_rank", "0").returncode == 1
    return found


def test_list(done):
    result = done.run("runs", "list")
    assert result.returncode == 0, result.stderr
    first, second = (line.split() for line in result.stdout.splitlines()[1:])
    assert first[:3] == ["group/user/toy/0001", "toy", "tiny"]
    assert first[-3:] == ["6/6", "0.6667", "done"]
    assert second[-6:] == ["1/2", "4.0000", "failed:", "exit", "code", "1"]
    facts = json.loads(done.run("runs", "list", "--json").stdout)
    assert [(each["state"], each["exit_code"], each["step"]) for each in facts] == [("done", 0, 6), ("failed", 1, 1)]
    assert done.run("runs", "list", str(done.folder / "output/group")).stdout.startswith("run ")


def test_list_of_nothing(done, tmp_path):
    assert done.run("runs", "list", str(tmp_path)).stdout == f"no runs below {tmp_path}\n"
    assert done.run("runs", "list", str(tmp_path / "no")).returncode == 2


def test_running_and_killed(tmp_path):
    own = bench(tmp_path)
    child = own.start(*"train pretrain --config toy.yaml --steps 9999 --seconds 0.02".split())
    try:
        limit = time.monotonic() + 30
        while "running: forward" not in (listed := own.run("runs", "list").stdout) and time.monotonic() < limit:
            time.sleep(0.2)
        assert "running: forward, step" in listed
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
    limit = time.monotonic() + 30
    while "killed" not in (listed := own.run("runs", "list").stdout) and time.monotonic() < limit:
        time.sleep(0.2)
    assert "killed: forward, step" in listed


def test_logs(done):
    first = str(done.experiment() / "attempts/0001")
    assert "noise 4" in done.run("logs", first, "--rank", "1").stdout
    assert done.run("logs", first, "--tail", "1").stdout == "observer saw the end\n"
    assert "observer saw ValueError" in done.run("logs", str(done.experiment())).stdout
    assert done.run("logs", first, "--launcher").returncode == 0
    missing = done.run("logs", first, "--rank", "7")
    assert missing.returncode == 2
    assert "rank-7.log: no such log; there are rank-0, rank-1, launcher" in missing.stderr
    assert done.run("logs", str(done.folder)).returncode == 2


def test_logs_follow_a_run_to_its_end(tmp_path):
    own = bench(tmp_path)
    child = own.start(*"train pretrain --config toy.yaml --steps 20 --seconds 0.05 --noise 3".split())
    while not (own.experiment() / "attempts/0001/run.json").exists():
        time.sleep(0.05)
    log = own.run("logs", str(own.experiment()), "--follow", "--tail", "0")
    assert child.wait(timeout=30) == 0
    child.communicate()
    assert log.returncode == 0
    assert log.stdout.endswith("observer saw the end\n")


def test_compare(done):
    attempts = done.experiment() / "attempts"
    result = done.run("compare", str(attempts / "0001"), str(attempts / "0002"))
    assert result.returncode == 0, result.stderr
    rows = {re.split("  +", line)[0]: line.split() for line in result.stdout.splitlines() if line}
    assert rows["final loss"][-2:] == ["0.666667", "4.000000"]
    assert rows["state"][1:] == ["done", "failed:", "exit", "code", "1"]
    assert "(command line, argument" in result.stdout
    assert "sekret" not in result.stdout
    assert "versions" not in result.stdout
    assert done.run("compare", str(attempts / "0001")).returncode == 2


def test_compare_of_versions_patches_and_data(done, tmp_path):
    def one(name, version, status, data):
        about = {"versions": {"torch": version, "same": "1"}, "data": {"d.bin": {"key": "k", "fingerprint": data}}}
        patches = [{"name": "toy.norm", "status": status}]
        return str(write_attempt(tmp_path / name / "attempts/0001", steps(1, 2), about, patches=patches))

    result = done.run("compare", one("a", "2.12", "applied", "3 bytes"), one("b", "2.13", "skipped", "4 bytes"))
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["torch", "2.12", "2.13"] in lines
    assert ["toy.norm", "applied", "skipped"] in lines
    assert ["d.bin", "3", "bytes", "4", "bytes"] in lines
    assert "same" not in result.stdout


def test_rerun_repeats_to_the_last_bit(done):
    result = done.run("rerun", str(done.experiment() / "attempts/0001"))
    assert result.returncode == 0, result.stderr
    told = result.stderr.splitlines()
    assert told[0] == "toy/0001 again: code, versions, environment, data and hardware are the same"
    assert told[-1] == "losses of 6 steps are equal to the last bit"
    again = done.experiment("toy-rerun") / "attempts/0001"
    assert json.loads((again / "worker.json").read_text())["config"]["steps"] == 6
    assert json.loads((again / "run.json").read_text())["launcher"]["options"]["nproc_per_node"] == 2
    assert "sekret" not in result.stdout + result.stderr + (again / "run.json").read_text()


def test_rerun_says_what_differs_first(done):
    words = ("rerun", str(done.experiment() / "attempts/0001"), "--dry-run", "--steps", "7", "--nproc", "1")
    result = done.run(*words, OMP_NUM_THREADS="2")
    assert result.returncode == 0
    assert "toy/0001 again; what differs today:" in result.stderr
    rows = [line.split() for line in result.stderr.splitlines()]
    assert ["OMP_NUM_THREADS", "1", "2"] in rows
    assert any(row[:2] == ["steps", "6"] for row in rows)
    assert "--nproc-per-node=1" in result.stdout
    assert "exp_name: toy-rerun" in result.stdout


def test_rerun_sees_that_losses_are_others(done):
    about = done.experiment() / "attempts/0001/metrics.jsonl"
    before = about.read_text()
    about.write_text(before.replace('"loss": 1.0,', '"loss": 1.5,'))
    try:
        result = done.run("rerun", str(about.parent), "exp_name=other")
    finally:
        about.write_text(before)
    assert result.stderr.splitlines()[-1] == "losses differ from step 4 on: 1.5 then, 1.0 now; 1 of 6"


def test_rerun_of_what_cannot_be(done, tmp_path):
    bare = write_attempt(tmp_path / "attempts/0001")
    result = done.run("rerun", str(bare))
    assert result.returncode == 2
    assert "cannot be repeated" in result.stderr
