"""A folder of experiments, and the command line run in it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from primus_core.run.attempts import Attempt, find

TIMEOUT = 300


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command came to. ``new`` are the folders of the attempts that it started."""

    words: tuple[str, ...]
    exit_code: int
    out: str
    err: str
    new: tuple[Path, ...] = ()

    @property
    def attempt(self) -> Attempt:
        """The attempt that the command started; raises ``AssertionError`` unless there is exactly one."""
        assert len(self.new) == 1, f"{len(self.new)} attempts were started\n{self}"
        return Attempt(self.new[0])

    @property
    def folder(self) -> Path:
        """The experiment's folder: its attempts and checkpoints."""
        folder = self.attempt.experiment
        assert folder is not None
        return folder

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per finished step: ``step``, ``loss`` and whatever the backend reports."""
        return self.attempt.steps

    def series(self, name: str) -> dict[int, Any]:
        """A metric by step."""
        return {event["step"]: event[name] for event in self.metrics if name in event}

    def ok(self) -> Result:
        """The result itself; raises ``AssertionError`` with all that was said when the exit code is not 0."""
        assert self.exit_code == 0, str(self)
        return self

    def __str__(self) -> str:
        said = f"{self.out[-6000:]}\n{self.err[-6000:]}"
        return f"primus {' '.join(self.words)} ended with exit code {self.exit_code}\n{said}"


@dataclass(frozen=True)
class Project:
    """A folder with files in it. Commands see no ``PRIMUS_`` variable of the caller, and take the CPU."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def write(self, files: Mapping[str, str]) -> None:
        """Write texts by relative path; common leading white space is taken off."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), encoding="utf-8")

    def run(self, *words: str, timeout: float = TIMEOUT, **environ: str) -> Result:
        """Run ``primus`` with these words and further variables of the environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_")}
        own = {"PRIMUS_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
        before = self._attempts()
        done = subprocess.run(
            [sys.executable, "-m", "primus_core", *words],
            cwd=self.folder,
            env=kept | own | dict(self.environ) | environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        new = tuple(sorted(self._attempts() - before))
        return Result(words=words, exit_code=done.returncode, out=done.stdout, err=done.stderr, new=new)

    def _attempts(self) -> set[Path]:
        return {attempt.folder for attempt in find(self.folder)}
