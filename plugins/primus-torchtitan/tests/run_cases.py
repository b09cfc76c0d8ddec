"""Trains several experiments one after the other in the same processes, since importing the engine takes longest.

Under torchrun: ``run_cases.py CASES.json OUT.json``, where cases are ``{name: parameters}``. Writes what the reporting
rank heard: ``{name: {"steps": [...], "evals": [...], "notes": [...], "checkpoints": [...], "error": ...}}``.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from primus_core.errors import PrimusError
from primus_core.patches.registry import Registry
from primus_core.plugins.manager import PluginManager
from primus_core.run.context import Place


class RecordingRun:
    """A run that keeps what it is told."""

    name = None
    platform = "cpu"
    devices = ()
    metrics: ClassVar[dict[str, Any]] = {}
    stop_requested = False

    def __init__(self) -> None:
        self.plugins = PluginManager.load()
        self.backend = self.plugins.backend("torchtitan")
        self.registry = Registry.of(self.plugins, self.backend)
        self.place = Place(
            **{name.lower(): int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        )
        self.rank = self.place.rank
        self.is_reporter = self.rank == 0
        self.stage = "pretrain"

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self.model = config.pop("preset", None)
        self.config, self.folder, self.attempt = config, folder, folder
        self.heard: dict[str, Any] = {"steps": [], "evals": [], "notes": [], "checkpoints": [], "phases": []}

    def apply_patches(self, phase: str) -> None:
        self.registry.apply(phase, self)

    def enter(self, phase: str, step: int | None = None) -> None:
        if phase not in self.heard["phases"]:
            self.heard["phases"].append(phase)

    def expect(self, steps: int, start: int = 0) -> None:
        self.heard["expect"] = [steps, start]

    def report_step(self, step: int, metrics: dict[str, Any]) -> None:
        self.heard["steps"].append({"step": step, **metrics})

    def report_eval(self, step: int, metrics: dict[str, Any], split: str = "valid") -> None:
        self.heard["evals"].append({"step": step, "split": split, **metrics})

    def checkpoint_saved(self, step: int, path: Path) -> None:
        self.heard["checkpoints"].append([step, str(path)])

    def note(self, message: str) -> None:
        self.heard["notes"].append(message)

    def model_built(self, model: Any) -> None:
        self.heard["parameters"] = sum(param.numel() for param in model.parameters())

    def builder(self, model: str) -> Any:
        found = self.plugins.models().get((self.backend.name, model))
        return found and found.record.builder and found.load(found.record.builder)


def main() -> None:
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    run = RecordingRun()
    run.begin({}, Path())
    run.apply_patches("import")
    import torch
    import torchtitan.train

    from primus_torchtitan.train import train

    torch.distributed.init_process_group("gloo")
    torchtitan.train.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)
    results = {}
    for name, config in cases.items():
        folder = Path(config.pop("folder", None) or tempfile.mkdtemp(dir=out.parent))
        run.begin(config, folder)
        try:
            train(run)
        except PrimusError as error:
            run.heard["error"] = str(error)
        results[name] = run.heard
        gc.collect()
    torch.distributed.destroy_process_group()
    if run.is_reporter:
        out.write_text(json.dumps(results, default=functools.partial(float)))


if __name__ == "__main__":
    main()
