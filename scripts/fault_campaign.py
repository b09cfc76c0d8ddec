"""Break real runs in every way that is known, and print what became of them: ``fault_campaign.py [NAME ...]``.

Runs on the CPU. Faults that need no engine are made in the toy backend of the tests, the others in Megatron.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PRIMUS = Path(sys.executable).with_name("primus")
LIMIT = 300.0
SAVE_INTERVAL = 4
"""No experiment saves less often, so that no fault costs more steps."""

TOY = """\
work_group: group
user_name: user
exp_name: run
modules:
  pre_trainer:
    framework: toy
    model: tiny
    overrides: {steps: 12, save_interval: 4, collective: true, bad_rank: 1, bad_step: 6, once: true, api_key: sekret-c}
"""
MEGATRON = """\
work_group: group
user_name: user
exp_name: run
modules:
  pre_trainer:
    framework: megatron
    model: llama3.2_1B.yaml
    overrides:
      {num_layers: 1, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4, num_query_groups: 2,
       max_position_embeddings: 64, seq_length: 64, tokenizer_type: NullTokenizer, vocab_size: 256, num_workers: 0,
       train_iters: 6, micro_batch_size: 2, global_batch_size: 4, lr: 1.0e-3, min_lr: 1.0e-4, lr_warmup_iters: 0,
       eval_iters: 0, eval_interval: 1000, save: checkpoints, save_interval: 2, auto_continue_train: true}
"""
MOCK = ("mock_data=true",)
DATA = ("train_data_path=tokens",)


@dataclass(slots=True)
class Outcome:
    """What became of a fault. ``lost``: steps that had to be made again, None where there were none to make."""

    code: int
    what: str
    lost: int | None = None
    afterwards: str = ""
    wrong: list[str] = field(default_factory=list)
    """What should not be: left-over processes and files, damaged checkpoints."""


class Desk:
    """A folder with an experiment."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self.folder = folder
        self.run = folder / "output/group/user/run"
        (folder / "run.yaml").write_text(experiment)

    def start(self, *words: str, launch: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_", "SLURM_"))}
        own = {"PYTHONPATH": str(ROOT / "tests/toy"), "PRIMUS_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
        secrets = {"TOY_TOKEN": "sekret-t", "SHELL_API_KEY": "sekret-s"}
        argv = [str(PRIMUS), "direct", *launch, "--", "train", "pretrain", "--config", "run.yaml", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=self.folder, env=kept | own | secrets, stdout=pipe, stderr=pipe, text=True)

    def train(self, *words: str, launch: tuple[str, ...] = ()) -> tuple[int, str, str]:
        return end(self.start(*words, launch=launch))

    def attempt(self, number: int) -> Path:
        return self.run / f"attempts/{number:04}"

    def rank(self, rank: int, attempt: int = 1) -> dict:
        file = self.attempt(attempt) / f"ranks/rank-{rank}.json"
        return json.loads(file.read_text() or "{}") if file.exists() else {}

    def steps(self, attempt: int) -> list[int]:
        file = self.attempt(attempt) / "metrics.jsonl"
        events = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        return [event["step"] for event in events if event["event"] == "step"]

    def lost(self) -> int | None:
        """Steps that the second attempt made again."""
        first, second = self.steps(1), self.steps(2)
        return max(first) - min(second) + 1 if first and second else None

    def left_over(self) -> list[str]:
        mark = f"PRIMUS_ATTEMPT={self.folder}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append(f"process {process.name} is left over")
            except OSError:
                continue
        litter = [*self.folder.rglob("*.new"), *self.folder.rglob("*.old"), *self.folder.rglob("*.lock")]
        return found + [f"{file.relative_to(self.folder)} is left over" for file in litter]


def end(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    return child.returncode, out, err


def until(holds: Callable[[], object], child: subprocess.Popen[str], pause: float = 0.02) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        if child.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"ended before the fault: {child.communicate()}")
        time.sleep(pause)


def headline(text: str, *signs: str) -> str:
    """The first line with one of these signs, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if any(sign in line for sign in signs)), lines[0] if lines else "")


def wrote_tokens(folder: Path) -> None:
    from primus_core.data.indexed import IndexedWriter

    rng = np.random.default_rng(0)
    with IndexedWriter(folder / "tokens", "uint16") as writer:
        for _ in range(200):
            tokens = rng.integers(1, 250, 400).astype(np.uint16)
            writer.add(tokens, np.array([len(tokens)], dtype=np.int32))


# --- the faults ---------------------------------------------------------------------------------------------------


def kill_rank(folder: Path) -> Outcome:
    """a rank is killed (SIGKILL), --restart 1"""
    desk = Desk(folder, TOY)
    code, _, err = desk.train("bad_way=kill", launch=("--nproc", "2", "--restart", "1"))
    return Outcome(code, headline(err), desk.lost(), headline(err, "restart 1"), desk.left_over())


def kill_agent(folder: Path) -> Outcome:
    """torchrun is killed (SIGKILL), --restart 1"""
    desk = Desk(folder, TOY)
    child = desk.start("bad_rank=-1", "seconds=0.2", launch=("--nproc", "2", "--restart", "1"))
    until(lambda: (desk.rank(0).get("step") or 0) >= 6, child)
    os.kill(int(Path(f"/proc/{desk.rank(0)['pid']}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    code, _, err = end(child)
    return Outcome(code, headline(err), desk.lost(), headline(err, "restart 1"), desk.left_over())


def stop_rank(folder: Path) -> Outcome:
    """a rank is stopped (SIGSTOP), --hang-timeout 5"""
    desk = Desk(folder, TOY)
    code, _, err = desk.train("bad_way=stopped", launch=("--nproc", "2", "--hang-timeout", "5"))
    wrong = desk.left_over()
    again, _, _ = desk.train("bad_rank=-1", "resume=true", launch=("--nproc", "2"))
    return Outcome(code, headline(err), desk.lost(), f"the next run ends with {again}", wrong)


def bad_loss(folder: Path) -> Outcome:
    """the loss becomes NaN, on_bad_loss: rollback"""
    desk = Desk(folder, TOY)
    code, _, err = desk.train("bad_way=nan", "launch.on_bad_loss=rollback", launch=("--nproc", "2"))
    return Outcome(code, headline(err, "the loss is"), desk.lost(), headline(err, "restart 1"), desk.left_over())


def full_disk(folder: Path) -> Outcome:
    """the disk is full during a save"""
    desk = Desk(folder, MEGATRON)
    with tmpfs(folder / "output", "3m") as grow:
        code, out, err = desk.train(*MOCK, "train_iters=40")
        reached, wrong = max(desk.steps(1)), desk.left_over()
        grow("200m")
        again, out, _ = desk.train(*MOCK, f"train_iters={reached + 2}")
        said = headline(out, "goes on after")
        return Outcome(
            code, headline(err, "space", "failed first"), desk.lost(), f"next run: {said}, exit {again}", wrong
        )


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A small disk; yields what makes it larger."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def truncated(folder: Path) -> Outcome:
    """a file of the latest checkpoint is truncated"""
    desk = Desk(folder, MEGATRON)
    code, _, err = desk.train(*MOCK, "train_iters=4")
    tensors = next((desk.run / "checkpoints/iter_0000004").glob("*.distcp"))
    os.truncate(tensors, 100)
    code, out, err = desk.train(*MOCK)
    said = headline(out, "goes on after")
    return Outcome(code, headline(out, "WARNING") or headline(err), desk.lost(), said, desk.left_over())


def no_data(folder: Path) -> Outcome:
    """the data file is gone"""
    desk = Desk(folder, MEGATRON)
    wrote_tokens(folder)
    (folder / "tokens.bin").unlink()
    code, _, err = desk.train(*DATA)
    return Outcome(code, headline(err), None, "nothing was started" * (not desk.run.exists()), desk.left_over())


def bad_index(folder: Path) -> Outcome:
    """the .idx file is damaged"""
    desk = Desk(folder, MEGATRON)
    wrote_tokens(folder)
    file = folder / "tokens.idx"
    file.write_bytes(file.read_bytes()[:-100])
    code, _, err = desk.train(*DATA)
    return Outcome(code, headline(err), None, "nothing was started" * (not desk.run.exists()), desk.left_over())


def kill_building(folder: Path) -> Outcome:
    """killed while it builds the index of its data"""
    desk = Desk(folder, MEGATRON)
    wrote_tokens(folder)
    child = desk.start(*DATA, "train_iters=400000", "exit_interval=2")
    until(lambda: list(folder.rglob("*_index.npy*")), child, 0.0005)
    os.kill(desk.rank(0)["pid"], signal.SIGKILL)
    code, _, err = end(child)
    again, _, more = desk.train(*DATA, "train_iters=400000", "exit_interval=2")
    after = f"the next run ends with {again}" + (f": {headline(more)}" if again else "")
    return Outcome(code, headline(err), None, after, desk.left_over() + ["the index is damaged"] * (again != 0))


def two_runs(folder: Path) -> Outcome:
    """two runs save into one folder"""
    desk = Desk(folder, MEGATRON)
    first = desk.start(*MOCK, "train_iters=2000")
    until(lambda: (desk.run / "checkpoints").exists(), first)
    code, _, err = desk.train(*MOCK)
    alive = first.poll() is None
    first.send_signal(signal.SIGTERM)
    _, _, story = end(first)
    return Outcome(
        code,
        headline(err, "another run"),
        None,
        f"the first: {headline(story)}",
        desk.left_over() + ["the first one ended, too"] * (not alive),
    )


FAULTS: dict[str, tuple[Callable[[Path], Outcome], int]] = {
    "kill-rank": (kill_rank, 0),
    "kill-agent": (kill_agent, 0),
    "stop-rank": (stop_rank, 4),
    "bad-loss": (bad_loss, 0),
    "full-disk": (full_disk, 1),
    "truncated-checkpoint": (truncated, 0),
    "no-data": (no_data, 2),
    "bad-index": (bad_index, 2),
    "kill-building": (kill_building, 1),
    "two-runs": (two_runs, 2),
}
"""What is done, and the exit code that it must have."""


def why_not(name: str) -> str | None:
    """Why a fault cannot be made here."""
    if name == "full-disk" and os.geteuid() != 0:
        return "a small disk can be mounted by root only"
    return None


def main(names: list[str]) -> int:
    print("| fault | exit code | what happened | steps made again | afterwards |")
    print("|---|---|---|---|---|")
    bad = 0
    for name in names or FAULTS:
        fault, expected = FAULTS[name]
        if reason := why_not(name):
            print(f"| {fault.__doc__} | | not tried: {reason} | | |", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(prefix="fault-"))
        try:
            result = fault(folder)
        finally:
            shutil.rmtree(folder)
        lost = "" if result.lost is None else str(result.lost)
        cells = [fault.__doc__, result.code, result.what, lost, "; ".join([result.afterwards, *result.wrong])]
        print("|", " | ".join(str(cell).replace(f"{folder}/", "").replace("|", "/") for cell in cells), "|", flush=True)
        bad += result.code != expected or bool(result.wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
