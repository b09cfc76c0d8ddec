"""Notice that ranks stand still, find out which one the others wait for, and say so."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primus_core.run import heartbeat
from primus_core.run.signals import FOLDER

DEFAULT = 3600.0
"""Seconds without progress, once training has made its first step."""
AT_START = 120.0
"""Before that, at least: imports, index files and the first compilation take longer than a step."""

_SHOW = 3.0
_FRAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands, for ``age`` seconds. ``pid`` is None on another machine; ``note`` what else is known."""

    rank: int
    phase: str
    step: int | None
    age: float
    host: str
    pid: int | None
    note: str = ""
    collectives: tuple[int, int] | None = None
    """The last collectives that it began and completed."""


@dataclass(frozen=True, slots=True)
class Hang:
    """What was found: all ranks, and those that the others wait for (none where they all stand at one place)."""

    ranks: tuple[Standing, ...]
    odd: tuple[Standing, ...]
    patience: float

    def lines(self, attempt: Path) -> Iterator[str]:
        """The story, the odd ranks on top."""
        if not self.ranks:
            yield f"hang: no rank started within {self.patience:.0f} s"
        elif not self.odd:
            yield f"hang: no rank made progress for {self.patience:.0f} s, and all stand at the same place"
        furthest = max((rank.step or 0 for rank in self.ranks), default=0)
        yield from (_sentence(rank, furthest) for rank in self.odd)
        for rank in self.odd[:1] or self.ranks[:1]:
            yield from _stack(attempt / FOLDER / f"rank-{rank.rank}.txt", rank.rank)
        if self.ranks:
            yield from _table(self.ranks)


def _sentence(rank: Standing, furthest: int) -> str:
    if rank.step is None:
        missed = "did not begin to train"
    elif rank.step < furthest:
        missed = f"did not reach step {furthest}"
    else:
        missed = f"did not finish step {rank.step}"
    note = f", {rank.note}" if rank.note else ""
    return f"hang: rank {rank.rank} {missed}: in {rank.phase} for {rank.age:.0f} s{note}"


def _table(ranks: Iterable[Standing]) -> Iterator[str]:
    """Ranks that stand at one place share a line."""
    yield "  rank        step  phase       age  collectives  host"
    groups: dict[tuple[Any, ...], list[Standing]] = {}
    for rank in ranks:
        groups.setdefault((rank.step, rank.phase, rank.host, rank.note, rank.collectives), []).append(rank)
    for (step, phase, host, note, began), members in groups.items():
        numbers = ",".join(str(member.rank) for member in members[:4]) + ",..." * (len(members) > 4)
        seen = "-" if began is None else f"{began[1]} of {began[0]}"
        age = f"{max(member.age for member in members):.0f} s"
        last = f"  ({note})" if note else ""
        yield f"  {numbers:10}{'-' if step is None else step:>6}  {phase:10}{age:>5}  {seen:11}  {host}{last}"


def _stack(file: Path, rank: int) -> Iterator[str]:
    """The main thread's frames, the innermost first."""
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8", errors="replace").splitlines()
    start = max((i for i, line in enumerate(text) if "most recent call first" in line), default=-1)
    yield f"  stack of rank {rank} ({file}):"
    yield from (f"  | {line.strip()}" for line in text[start + 1 : start + 1 + _FRAMES])


class Watch:
    """The heartbeats of an attempt, and since when each stands still by the clock of this machine."""

    def __init__(self, attempt: Path, patience: float | None, at_start: float = AT_START) -> None:
        self.attempt = attempt
        self.patience = DEFAULT if patience is None else patience or math.inf
        self.at_start = math.inf if patience is None else max(self.patience, at_start)
        self._began = time.monotonic()
        self._seen: dict[int, tuple[Mapping[str, Any], float]] = {}

    def look(self) -> tuple[Standing, ...] | None:
        """All ranks if one of them stood still for too long; None while everything goes on."""
        now = time.monotonic()
        for rank, state in heartbeat.read_all(self.attempt / "ranks").items():
            if rank not in self._seen or self._seen[rank][0] != state:
                self._seen[rank] = (state, now)
        if not self._seen:
            return () if now - self._began > self.at_start else None
        busy = {rank: seen for rank, seen in self._seen.items() if seen[0]["phase"] != "finished"} or self._seen
        late = any(
            now - since > (self.at_start if state["step"] is None else self.patience) for state, since in busy.values()
        )
        if not late or any((self.attempt / "errors").glob("rank-*.json")):
            return None
        return tuple(_standing(state, now - since) for _, (state, since) in sorted(busy.items()))


def _standing(state: Mapping[str, Any], age: float) -> Standing:
    here = state["host"] == socket.gethostname()
    return Standing(
        rank=state["rank"],
        phase=state["phase"],
        step=state["step"],
        age=age,
        host=state["host"],
        pid=state["pid"] if here else None,
        note=_note(state["pid"]) if here else "",
    )


def _note(pid: int) -> str:
    """What Linux says of a process that cannot go on; nothing of one that can."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "its process is gone"
    return {"T": "its process is stopped (SIGSTOP)", "Z": "its process is dead", "D": "it waits for a disk"}.get(
        letter, ""
    )


def examine(attempt: Path, ranks: tuple[Standing, ...], patience: float) -> Hang:
    """Have the ranks of this machine show their stacks and collectives, and compare."""
    here = [rank for rank in ranks if rank.pid is not None]
    logs = {rank.rank: attempt / "logs" / f"rank-{rank.rank}.log" for rank in here}
    sizes = {number: log.stat().st_size if log.exists() else 0 for number, log in logs.items()}
    for rank in here:
        if rank.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(rank.pid, signal.SIGUSR2)
    limit = time.monotonic() + _SHOW
    waiting = set(sizes)
    while waiting and time.monotonic() < limit:
        time.sleep(0.1)
        waiting = {
            number for number in waiting if logs[number].exists() and logs[number].stat().st_size == sizes[number]
        }
    time.sleep(0.5)  # for the end of the stacks, and for collectives
    folder = attempt / FOLDER
    folder.mkdir(exist_ok=True)
    for rank in here:
        text = _since(logs[rank.rank], sizes[rank.rank]) if rank.rank not in waiting else _py_spy(rank.pid)
        if text:
            (folder / f"rank-{rank.rank}.txt").write_bytes(text)
    known = tuple(replace(rank, collectives=_collectives(folder / f"rank-{rank.rank}.json")) for rank in ranks)
    return Hang(known, tuple(odd(known)), patience)


def _since(log: Path, size: int) -> bytes:
    if not log.exists():
        return b""
    with log.open("rb") as file:
        file.seek(size)
        return file.read()


def _py_spy(pid: int | None) -> bytes:
    """The stacks as py-spy sees them, where it is installed: of a stopped process, too."""
    command = shutil.which("py-spy")
    if command is None:
        return b""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [command, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=20, check=False
        )
        return done.stdout
    return b""


def _collectives(file: Path) -> tuple[int, int] | None:
    if not file.exists():
        return None
    groups = json.loads(file.read_bytes())["pg_status"].values()
    counts = [(int(group["last_enqueued_collective"]), int(group["last_completed_collective"])) for group in groups]
    return sum(max(0, began) for began, _ in counts), sum(max(0, done) for _, done in counts)


def odd(ranks: tuple[Standing, ...]) -> list[Standing]:
    """The ranks that the others wait for: those that cannot go on, else those that are behind, else those that do
    something else. Empty where nothing tells them apart."""
    if len(ranks) <= 1:
        return list(ranks)
    if stuck := [rank for rank in ranks if rank.note]:
        return stuck
    for measure in (_step, _began):
        values = [measure(rank) for rank in ranks]
        if len(set(values)) > 1:
            return [rank for rank, value in zip(ranks, values, strict=True) if value == min(values)]
    phases = Counter(rank.phase for rank in ranks)
    common, count = phases.most_common(1)[0]
    if count == len(ranks):
        return []
    if list(phases.values()).count(count) > 1:  # no majority: who waits for data is not in a collective
        return [rank for rank in ranks if rank.phase in ("data", "start", "import", "build")]
    return [rank for rank in ranks if rank.phase != common]


def _step(rank: Standing) -> int:
    return -1 if rank.step is None else rank.step


def _began(rank: Standing) -> int:
    return rank.collectives[0] if rank.collectives else 0


@contextmanager
def watching(attempt: Path, patience: float | None, stop: Callable[[], None]) -> Iterator[list[Hang]]:
    """Watch until the block ends; after a hang, which the list then holds, ``stop`` is called."""
    found: list[Hang] = []
    ended = threading.Event()
    watch = Watch(attempt, patience)

    def loop() -> None:
        while not ended.wait(max(0.1, min(10.0, watch.patience / 10))):
            if (ranks := watch.look()) is not None:
                found.append(examine(attempt, ranks, watch.patience))
                stop()
                return

    thread = threading.Thread(target=loop, name="watchdog", daemon=True)
    if watch.patience < math.inf:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
