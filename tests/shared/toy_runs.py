"""Runs of the toy backend, and folders that look as if there had been some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOY = Path(__file__).parents[1] / "toy"
EXPERIMENT = """\
work_group: group
user_name: user
exp_name: toy
modules:
  pre_trainer:
    framework: toy
    model: tiny
    overrides: {api_key: sekret-of-config}
"""


@dataclass(frozen=True)
class Bench:
    """A working folder with an experiment in it."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_")}
        secrets = {"TOY_TOKEN": "sekret-t", "SHELL_API_KEY": "sekret-s", "PRIMUS_SECRET_API_KEY": "sekret-of-config"}
        return kept | secrets | {"PYTHONPATH": str(TOY), "PRIMUS_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).parent / "primus"), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environ | environ, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        child = self.start(*words, **environ)
        out, err = child.communicate(timeout=90)
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    def train(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("train", "pretrain", "--config", "toy.yaml", *words)

    def experiment(self, name: str = "toy") -> Path:
        return self.folder / "output/group/user" / name


def bench(folder: Path) -> Bench:
    (folder / "toy.yaml").write_text(EXPERIMENT)
    return Bench(folder)


def write_attempt(
    folder: Path,
    events: Iterable[Mapping[str, Any]] = (),
    about: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    **files: Any,
) -> Path:
    """A folder of an attempt with these files; ``files`` are JSON, by name without its ending."""
    folder.mkdir(parents=True)
    known = {"name": folder.parent.parent.name, "stage": "pretrain", "backend": "toy", "model": "tiny"}
    records = {"run": known | dict(about or {}), "result": result, **files}
    for name, value in records.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def started(ranks: int = 1) -> dict[str, Any]:
    return {"event": "run_started", "time": 0.0, "name": "toy", "backend": "toy", "platform": "cpu", "ranks": ranks}


def steps(first: int, last: int, **metrics: Any) -> list[dict[str, Any]]:
    """Step events; a metric may be a function of the step. The loss is ``4 / step`` unless it is given."""
    chosen = {"loss": lambda step: 4.0 / step} | metrics
    return [
        {"event": "step", "time": float(step), "step": step}
        | {name: value(step) if callable(value) else value for name, value in chosen.items()}
        for step in range(first, last + 1)
    ]


def evaluated(step: int, loss: float, split: str = "valid") -> dict[str, Any]:
    return {"event": "eval", "time": float(step), "step": step, "split": split, "loss": loss}
