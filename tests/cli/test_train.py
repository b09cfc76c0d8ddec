"""``primus train`` with a backend that needs no engine: real torchrun, real workers, real ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from primus_core.run import metrics

TOY = Path(__file__).parents[1] / "toy"
SECRETS = {"TOY_TOKEN": "sekret-of-the-file", "SHELL_API_KEY": "sekret-of-the-shell", "api_key": "sekret-of-config"}
EXPERIMENT = """\
work_group: group
user_name: user
exp_name: toy
env: {FROM_FILE: 1e3, TOY_TOKEN: sekret-of-the-file}
metrics: {sinks: [tensorboard]}
modules:
  pre_trainer:
    framework: toy
    model: tiny
    overrides:
      api_key: sekret-of-config
"""

HOOKS = """\
from primus_core.plugins import hookimpl

@hookimpl
def primus_run_started(run):
    print("primusfile saw the start of", run.name)

@hookimpl
def primus_step_finished(step):
    step / 0
"""


@dataclass(frozen=True)
class Bench:
    """A working folder with an experiment in it."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_")}
        own = {"PYTHONPATH": str(TOY), "PRIMUS_PLATFORM": "cpu", "SHELL_API_KEY": SECRETS["SHELL_API_KEY"]}
        return kept | own | {"OMP_NUM_THREADS": "1"}

    def start(self, *words: str, **how: object) -> subprocess.Popen[str]:
        pipes: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [str(Path(sys.executable).parent / "primus"), *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, **pipes | how)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        child = self.start(*words)
        out, err = child.communicate(timeout=90)
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    def train(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("train", "pretrain", "--config", "toy.yaml", *words)

    def attempt(self, number: int = 1) -> Path:
        return self.folder / f"output/group/user/toy/attempts/{number:04}"


def make_bench(folder: Path) -> Bench:
    (folder / "toy.yaml").write_text(EXPERIMENT)
    return Bench(folder)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


def wait_for[T](look: Callable[[], T | None], seconds: float = 30) -> T:
    """What ``look`` gives, as soon as it gives something."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing came")


def running(attempt: Path) -> list[int]:
    """The processes that still belong to an attempt."""
    mark = f"PRIMUS_ATTEMPT={attempt}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def at_work(attempt: Path, ranks: int) -> dict[int, int] | None:
    """Process ids by rank, once all ranks are in their steps."""
    states = [json.loads(path.read_text() or "{}") for path in (attempt / "ranks").glob("*.json")]
    busy = {state["rank"]: state["pid"] for state in states if state.get("phase") == "forward"}
    return busy if len(busy) == ranks else None


@pytest.fixture(scope="module")
def good_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def good(good_bench: Bench) -> subprocess.CompletedProcess[str]:
    words = ("--collective", "--steps", "12", "api_key=sekret-of-argv")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=good_bench.folder, check=True)
    subprocess.run([*git, "add", "toy.yaml"], cwd=good_bench.folder, check=True)
    subprocess.run([*git, "commit", "-qm", "x"], cwd=good_bench.folder, check=True)
    (good_bench.folder / "toy.yaml").write_text(EXPERIMENT + "# token sekret-of-the-shell\n")
    launcher = ("direct", "--nproc-per-node", "2", "--env", "BY_HAND=a b", "--env", "SHELL_API_KEY")
    return good_bench.run(*launcher, "--", "train", "pretrain", "--config", "toy.yaml", *words)


def test_good_run_console(good_bench, good):
    assert good.returncode == 0, good.stderr
    lines = good.stdout.splitlines()
    assert lines[0] == "toy: pretrain with toy (toy-engine 1.0), model tiny"
    assert lines[1].startswith("2 ranks on cpu")
    assert lines[2] == "read toy.yaml, modules/pre_trainer.yaml, models/tiny.yaml"
    assert lines[3] == "run folder: output/group/user/toy/attempts/0001"
    assert re.fullmatch(r"step  2/12  loss 2\.0000  lr 1\.00e-04  3200 tok/s  10\.0 ms/step  eta \d:\d\d", lines[6])
    assert "valid at step 12  loss 1.5000" in lines
    assert re.fullmatch(r"loss 4\.0000 █[▁-▇]+ 0\.3333", lines[-2])
    assert "noise" not in good.stdout


def test_good_run_metrics(good_bench, good):
    events = metrics.read(good_bench.attempt() / "metrics.jsonl")
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["run_started", "expect"]
    assert kinds[-3:] == ["eval", "checkpoint", "run_finished"]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 13))
    assert steps[3]["loss"] == 1.0
    assert events[0]["ranks"] == 2


def test_good_run_folder(good_bench, good):
    attempt = good_bench.attempt()
    about = json.loads((attempt / "run.json").read_text())
    assert about["versions"]["toy-engine"] == "1.0"
    assert len(about["git_commit"]) == 40
    assert about["argv"][:2] == ["train", "pretrain"]
    assert about["environment"]["SHELL_API_KEY"] == "***"
    assert "+# token ***" in (attempt / "git.diff").read_text()
    assert json.loads((attempt / "patches.json").read_text()) == []
    assert json.loads((attempt / "result.json").read_text())["exit_code"] == 0
    assert json.loads((attempt / "origins.json").read_text())["steps"]["layer"] == "command line"
    for rank in range(2):
        assert json.loads((attempt / f"ranks/rank-{rank}.json").read_text())["phase"] == "finished"
        assert "observer saw the end" in (attempt / f"logs/rank-{rank}.log").read_text()


def test_good_run_environment(good_bench, good):
    variables = json.loads(
        (good_bench.attempt() / "logs/rank-1.log").read_text().partition("environ ")[2].splitlines()[0]
    )
    assert variables == {
        "FROM_FILE": "1e3",
        "BY_HAND": "a b",
        "TOY_DEFAULT": "of the plugin",
        "OMP_NUM_THREADS": "1",
        "secrets arrived": True,
    }


def test_secrets_are_nowhere(good_bench, good):
    texts = [good.stdout, good.stderr]
    texts += [path.read_text(errors="replace") for path in good_bench.attempt().rglob("*") if path.is_file()]
    assert not [text for text in texts if "sekret" in text]


def test_resolved_config_can_be_used_again(good_bench, good):
    again = good_bench.run("train", "pretrain", "--config", str(good_bench.attempt() / "config.yaml"), "--dry-run")
    assert again.returncode == 2
    assert "PRIMUS_SECRET_API_KEY" in again.stderr
    again = good_bench.run(
        "train", "pretrain", "--config", str(good_bench.attempt() / "config.yaml"), "--dry-run", "api_key=x"
    )
    assert again.returncode == 2
    assert "TOY_TOKEN" in again.stderr


def test_good_run_tensorboard(good_bench, good):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(good_bench.attempt() / "tensorboard"))
    events.Reload()
    losses = {scalar.step: scalar.value for scalar in events.Scalars("train/loss")}
    assert losses[4] == 1.0
    assert len(losses) == 12
    assert events.Scalars("valid/loss")[0].value == 1.5


def test_good_run_leaves_no_process(good_bench, good):
    assert not running(good_bench.attempt())


def test_first_exception_stands_on_top(bench):
    result = bench.train("--nproc", "2", "--collective", "--noise", "300", "--bad_rank", "1")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert re.fullmatch(r"rank 1 of 2 failed first on .+, in phase 'forward' at step 2", lines[0])
    assert lines[1] == "  ValueError: seq_len 128 is not divisible by cp 3"
    assert re.fullmatch(rf"  at {TOY}/primus_toy/train.py:\d+ in misbehave", lines[2])
    assert lines[3].endswith("logs/rank-1.log:")
    assert "  | noise 299" in lines
    assert "1 other rank ended after it:" in lines
    assert len(lines) < 20
    error = json.loads((bench.attempt() / "errors/rank-1.json").read_text())
    assert error["exit_code"] == 1
    assert "Traceback" in error["traceback"]
    assert "observer saw ValueError" in (bench.attempt() / "logs/rank-1.log").read_text()
    assert json.loads((bench.attempt() / "result.json").read_text())["root_cause"].startswith("rank 1 of 2")
    assert not running(bench.attempt())


def test_killed_rank_is_named_and_not_its_victims(bench):
    child = bench.start(*"train pretrain --config toy.yaml --nproc 2 --collective --steps 5000 --seconds .01".split())
    ranks = wait_for(lambda: at_work(bench.attempt(), 2))
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert time.monotonic() - began < 10
    assert re.match(r"rank 1 of 2 failed first on .+, in phase 'forward' at step \d+\n  killed by SIGKILL", err)
    assert not running(bench.attempt())


def test_nothing_survives_the_end_of_torchrun(bench):
    child = bench.start(*"train pretrain --config toy.yaml --nproc 2 --steps 5000 --seconds .01".split())
    ranks = wait_for(lambda: at_work(bench.attempt(), 2))
    agent = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 1
    assert err.startswith("torchrun itself was ended by SIGKILL")
    assert "rank 1 was on " in err
    assert not running(bench.attempt())


def test_interrupt_ends_the_run_in_order(bench):
    child = bench.start(*"train pretrain --config toy.yaml --steps 5000 --seconds .01".split())
    wait_for(lambda: at_work(bench.attempt(), 1))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 1
    assert err.startswith("interrupted: SIGINT")
    assert not running(bench.attempt())


def test_exit_code_of_a_worker_and_hooks_of_a_primusfile(bench):
    (bench.folder / "hooks.py").write_text(HOOKS)
    way = ("--bad_rank", "0", "--bad_way", "environment", "--message", "no sekret-of-config")
    way = (*way, "--export_config", "all.yaml")
    result = bench.run("--primusfile", "hooks.py", "train", "pretrain", "--config", "toy.yaml", *way)
    assert result.returncode == 3
    assert "  no ***" in result.stderr
    assert "sekret" not in result.stderr
    assert "bad_way: environment" in (bench.folder / "all.yaml").read_text()
    log = (bench.attempt() / "logs/rank-0.log").read_text()
    assert "primusfile saw the start of toy" in log
    assert "failed in primus_step_finished: ZeroDivisionError" in log


def test_terminal_shows_a_live_view(bench):
    main, other = pty.openpty()
    words = "train pretrain --config toy.yaml --steps 60 --seconds .03".split()
    child = bench.start(*words, stdout=other, stderr=other, stdin=other)
    os.close(other)
    shown = b""
    while chunk := read_terminal(main):
        shown += chunk
    assert child.wait(timeout=30) == 0
    text = shown.decode()
    assert re.search(r"step \d+/60", text)
    assert "━" in text
    assert "left" in text
    assert "done after" in text
    assert "\x1b[" in text


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux: the other side is closed
        return b""


def test_pasted_dry_run_is_the_same_run(bench):
    printed = bench.train("--dry-run", "--steps", "2", "--message", "a 'b' \"c\" $HOME; echo hi")
    assert printed.returncode == 0
    assert not (bench.folder / "output").exists()
    assert "sekret" not in printed.stdout + printed.stderr
    assert "export TOY_DEFAULT='of the plugin'  # primus-toy" in printed.stdout
    assert "# export TOY_TOKEN='***'" in printed.stdout
    environ = bench.environ | {"TOY_TOKEN": "t", "PRIMUS_SECRET_API_KEY": "k"}
    done = subprocess.run(
        ["bash"], input=printed.stdout, cwd=bench.folder, env=environ, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout
    assert (
        json.loads((bench.attempt() / "worker.json").read_text())["config"]["message"] == "a 'b' \"c\" $HOME; echo hi"
    )


def test_wrong_input_starts_nothing(bench):
    result = bench.train("--stepz", "5", "--bad_way", "sideways")
    assert result.returncode == 2
    assert "did you mean 'steps'" in result.stderr
    assert "sideways" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (bench.folder / "output").exists()


def test_stage_that_the_backend_does_not_have(bench):
    result = bench.run("train", "posttrain", "--config", "toy.yaml")
    assert result.returncode == 2
    assert result.stderr.startswith("toy.yaml:7:3: this experiment has no module for posttrain")


def test_missing_engine_is_named_with_its_cure(bench):
    bare = bench.folder / "bare"
    bare.mkdir()
    for name in ("primus_toy", "primus_toy-1.0.dist-info"):
        (bare / name).symlink_to(TOY / name)
    command = [str(Path(sys.executable).parent / "primus"), *shlex.split("train pretrain --config toy.yaml")]
    how = {"cwd": bench.folder, "env": bench.environ | {"PYTHONPATH": str(bare)}, "capture_output": True, "text": True}
    result = subprocess.run(command, **how)
    assert result.returncode == 3
    assert result.stderr == "primus: toy cannot run here: toy-engine is not installed; pip install toy-engine\n"
    assert not (bench.folder / "output").exists()
    assert subprocess.run([*command, "--dry-run"], **how).returncode == 0


def test_sinks_are_checked_before_anything_starts(bench):
    result = bench.train("--dry-run", "metrics.sinks=[tensorbord]")
    assert result.returncode == 2
    assert "did you mean 'tensorboard'" in result.stderr


def test_old_options_are_never_ignored(bench):
    result = bench.train("--dry-run", "--data_path", "cache", "--backend_path", ".", "--export_config", "all.yaml")
    assert result.returncode == 0
    assert f"export HF_HOME={bench.folder}/cache/huggingface" in result.stdout
    assert f"export PYTHONPATH={bench.folder}:{TOY}" in result.stdout
    assert "all.yaml is not written in a dry run" in result.stderr
    assert not (bench.folder / "all.yaml").exists()


@pytest.fixture(autouse=True)
def no_children_left() -> Iterator[None]:
    before = {*children()}  # trackers under test keep a service of theirs
    yield
    assert not {*children()} - before


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
