"""Attempts on disk, read again: what was asked for, what was measured, and how it stands."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from primus_core.errors import UserError
from primus_core.run import failure, heartbeat, metrics

type State = Literal["running", "done", "failed", "killed", "unknown"]

_SIGNS = ("run.json", "worker.json", "metrics.jsonl")
_MARK = b"PRIMUS_ATTEMPT="


@dataclass(frozen=True, kw_only=True)
class Status:
    """How an attempt stands. ``detail`` in a few words; ``unknown`` where only another host could tell."""

    state: State
    detail: str = ""
    exit_code: int | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else self.state


@dataclass(frozen=True)
class Attempt:
    """The folder of one attempt; its files are read when they are asked for."""

    folder: Path

    @property
    def name(self) -> str:
        """``toy/0002``: the experiment and the number, as far as the path tells."""
        experiment = self.experiment
        return f"{experiment.name}/{self.folder.name}" if experiment else self.folder.name

    @property
    def experiment(self) -> Path | None:
        """The folder of the experiment that it belongs to."""
        folder = self.folder.absolute()
        return folder.parents[1] if folder.parent.name == "attempts" else None

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """``run.json``; of a pasted plan, which has none, what its workers were told."""
        if (self.folder / "run.json").is_file():
            return _mapping(self.folder / "run.json")
        task = _mapping(self.folder / "worker.json")
        return {name: task[name] for name in ("name", "stage", "backend", "model") if name in task}

    @cached_property
    def result(self) -> Mapping[str, Any]:
        return _mapping(self.folder / "result.json")

    @cached_property
    def origins(self) -> Mapping[str, Mapping[str, Any]]:
        """For each dotted key its ``value``, ``origin``, ``layer`` and what it ``replaced``."""
        return _mapping(self.folder / "origins.json")

    @cached_property
    def patches(self) -> list[Mapping[str, Any]]:
        file = self.folder / "patches.json"
        return list(_json(file)) if file.is_file() else []

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        return metrics.read(file) if file.is_file() else []

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The events of finished steps."""
        return [event for event in self.events if event["event"] == "step"]

    @cached_property
    def ranks(self) -> dict[int, dict[str, Any]]:
        return heartbeat.read_all(self.folder / "ranks")

    @cached_property
    def diff(self) -> str:
        """``git.diff``: what was not committed."""
        file = self.folder / "git.diff"
        return file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""

    @property
    def world_size(self) -> int | None:
        """The number of ranks, as far as any has started."""
        sizes = [event["ranks"] for event in self.events if event["event"] == "run_started"]
        return sizes[-1] if sizes else next((state["world_size"] for state in self.ranks.values()), None)

    @cached_property
    def errors(self) -> dict[int, dict[str, Any]]:
        """What ranks died of."""
        return failure.read_all(self.folder / "errors")

    @property
    def expected(self) -> int | None:
        """The step that training is to end at."""
        wanted = [event["steps"] for event in self.events if event["event"] == "expect"]
        return wanted[-1] if wanted else None

    def last(self, name: str) -> Any:
        """The latest value of a step's metric that is not null."""
        return next((event[name] for event in reversed(self.steps) if event.get(name) is not None), None)

    def log(self, rank: int) -> Path:
        return self.folder / "logs" / f"rank-{rank}.log"

    def status(self, alive: frozenset[str] | None = None) -> Status:
        """How it stands now. ``alive`` is what ``marked()`` gave, for callers that ask about many."""
        if "exit_code" in self.result:
            return self._ended()
        if str(self.folder.absolute()) in (marked() if alive is None else alive) or self._supervised():
            return Status(state="running", detail=self._where())
        hosts = {state["host"] for state in self.ranks.values()} or {self.about.get("host", {}).get("name")}
        if self.ranks and all(state["phase"] == "finished" for state in self.ranks.values()):
            return Status(state="done")
        if here := hosts & {socket.gethostname(), None}:
            pids = [state["pid"] for state in self.ranks.values() if state["host"] in here]
            if any(_is_another_users(pid) for pid in pids):
                return Status(state="running", detail=self._where())
            return Status(state="killed", detail=self._where())
        return Status(state="unknown", detail=f"on {', '.join(sorted(hosts))}, {self._last_sign()}")

    def _supervised(self) -> bool:
        """Whether the command that started it is still there, on this machine."""
        host = self.about.get("host", {})
        if host.get("name") != socket.gethostname() or "pid" not in host:
            return False
        try:
            return b"primus" in Path(f"/proc/{host['pid']}/cmdline").read_bytes()
        except OSError:
            return False

    def _ended(self) -> Status:
        code = self.result["exit_code"]
        if code == 0:
            return Status(state="done", exit_code=0)
        cause = str(self.result.get("root_cause") or "").partition("\n")[0]
        interrupted = cause if cause.startswith("interrupted") else ""
        return Status(state="failed", detail=interrupted or f"exit code {code}", exit_code=code)

    def _where(self) -> str:
        """The phase and the step of the rank that is furthest behind."""
        if not self.ranks:
            return "starting"
        state = min(self.ranks.values(), key=lambda state: (state["step"] or 0, state["time"]))
        return f"{state['phase']}, step {state['step']}" if state["step"] is not None else str(state["phase"])

    def _last_sign(self) -> str:
        times = [state["time"] for state in self.ranks.values()] or [self.folder.stat().st_mtime]
        return f"last sign {round(time.time() - max(times))} s ago"


def find(workspace: Path) -> Iterator[Attempt]:
    """All attempts below a folder, by experiment and number. Looks no deeper into attempts and checkpoints."""
    for folder, names, _ in workspace.walk():
        names.sort()
        if "attempts" in names:
            yield from of_experiment(folder)
            names[:] = [name for name in names if name not in ("attempts", "checkpoints")]


def of_experiment(folder: Path) -> list[Attempt]:
    """The attempts of an experiment's folder, oldest first."""
    found = (path for path in (folder / "attempts").glob("[0-9]*") if path.name.isdecimal() and is_attempt(path))
    return [Attempt(path) for path in sorted(found, key=lambda path: int(path.name))]


def is_attempt(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _SIGNS)


def named(run: Path) -> list[Attempt]:
    """What RUN means: the folder of one attempt, or all attempts of an experiment's folder, oldest first.

    Raises ``UserError`` when it is neither.
    """
    if is_attempt(run):
        return [Attempt(run)]
    if attempts := of_experiment(run):
        return attempts
    below = list(find(run)) if run.is_dir() else []
    hint = f"; there are runs below it, such as {below[-1].folder}" if below else ""
    raise UserError(f"{run} is not the folder of a run: it has no attempts/0001 with a run.json{hint}")


def latest(run: Path) -> Attempt:
    """The attempt that RUN names, or the latest of its experiment."""
    return named(run)[-1]


def marked() -> frozenset[str]:
    """The folders of the attempts that processes of this machine belong to, by the mark in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to somebody else
            continue
        found |= {os.fsdecode(word.removeprefix(_MARK)) for word in variables if word.startswith(_MARK)}
    return frozenset(found)


def _is_another_users(pid: int) -> bool:
    """Whether there is such a process that this user cannot look into: then it may be the rank's."""
    process = Path(f"/proc/{pid}")
    return process.exists() and not os.access(process / "environ", os.R_OK)


def _mapping(file: Path) -> dict[str, Any]:
    return dict(_json(file)) if file.is_file() else {}


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
