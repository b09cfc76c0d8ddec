"""Trains several experiments one after the other in the same processes, since importing the engine takes longest.

Under torchrun: ``run_cases.py CASES.json OUT.json``, where cases are ``{name: parameters}``. Writes what the reporting
rank heard: ``{name: {"steps": [...], "evals": [...], "notes": [...], "checkpoints": [...], "error": ...}}``, and with
``tokens`` ([[number, ...], ...]) the ``logits`` of what was loaded.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch

from primus_core.patches.registry import Registry
from primus_core.plugins.manager import PluginManager
from primus_core.run.context import Place
from primus_core.run.recovery import Recovery


class RecordingRun:
    """A run that keeps what it is told."""

    name = None
    platform = "cpu"
    devices = ()
    metrics: ClassVar[dict[str, Any]] = {}
    stop_requested = False
    recovery = Recovery()

    def __init__(self) -> None:
        plugins = PluginManager.load()
        self.backend = plugins.backend("megatron")
        self.registry = Registry.of(plugins, self.backend)
        self.place = Place(
            **{name.lower(): int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        )
        self.rank = self.place.rank
        self.is_reporter = self.rank == self.place.world_size - 1

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self.stage = config.pop("stage", "pretrain")
        self.model = config.pop("model", None)
        self.tokens = config.pop("tokens", None)
        self.config, self.folder, self.attempt = config, folder, folder
        self.heard: dict[str, Any] = {"steps": [], "evals": [], "notes": [], "checkpoints": [], "phases": []}

    def apply_patches(self, phase: str) -> None:
        self.registry.apply(phase, self)

    def enter(self, phase: str, step: int | None = None) -> None:
        if phase not in self.heard["phases"]:
            self.heard["phases"].append(phase)

    def expect(self, steps: int, start: int = 0) -> None:
        self.heard["expect"] = [steps, start]
        if self.tokens is not None:
            self.heard["logits"] = logits(self.chunk, torch.tensor(self.tokens)).tolist()

    def report_step(self, step: int, metrics: dict[str, Any]) -> None:
        self.heard["steps"].append({"step": step, **metrics})

    def report_eval(self, step: int, metrics: dict[str, Any], split: str = "valid") -> None:
        self.heard["evals"].append({"step": step, "split": split, **metrics})

    def checkpoint_saved(self, step: int, path: Path) -> None:
        self.heard["checkpoints"].append([step, str(path)])

    def note(self, message: str) -> None:
        self.heard["notes"].append(message)

    def model_built(self, model: Any) -> None:
        self.chunk = model
        self.heard["parameters"] = sum(param.numel() for param in model.parameters())

    def builder(self, model: str) -> Any:
        return build_as_megatron_does


def build_as_megatron_does(run: Any, *, pg_collection: Any, pre_process: bool, post_process: bool, **_: Any) -> Any:
    """A plugin's own builder."""
    from megatron.training import get_args
    from megatron.training.argument_utils import gpt_config_from_args
    from megatron.training.models.gpt import GPTModelBuilder

    return GPTModelBuilder(gpt_config_from_args(get_args())).build_model(pg_collection, pre_process, post_process)


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, padded vocabulary] of a whole model on one rank, for tokens of [batch, tokens]."""
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(tokens, torch.arange(tokens.size(1)).expand_as(tokens), None)
    model.train()
    return result


def start_group(name: str, place: Place) -> None:
    """With keys of its own in the store: those of the group before would still be there."""
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.PrefixStore(name, store), rank=place.rank, world_size=place.world_size
    )


def main() -> None:
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    run = RecordingRun()
    run.begin({}, Path())
    run.apply_patches("import")
    from primus_megatron.train import train

    results = {}
    for name, config in cases.items():
        folder = Path(config.pop("folder", None) or tempfile.mkdtemp(dir=out.parent))
        run.begin(config, folder)
        start_group(name, run.place)
        train(run)
        results[name] = run.heard
    if run.is_reporter:
        out.write_text(json.dumps(results, default=functools.partial(float)))


if __name__ == "__main__":
    main()
