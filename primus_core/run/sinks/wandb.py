"""Weights & Biases. ``metrics.wandb`` goes to ``wandb.init`` as it stands: project, entity, mode, tags..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from primus_core.run.sinks import configuration, options, scalars

if TYPE_CHECKING:
    from primus_core.run.context import Run


class WandB:
    """One run of theirs for one attempt; the configuration goes along without its secrets."""

    def __init__(self, run: Run, wanted: Mapping[str, Any]) -> None:
        import wandb

        settings = {"project": "primus", "name": run.name, "dir": str(run.attempt), "config": configuration(run)}
        self._run = wandb.init(**(settings | dict(wanted)))
        self._code = 0

    def event(self, event: Mapping[str, Any]) -> None:
        if values := scalars(event):
            self._run.log(values, step=event["step"])
        if event["event"] == "run_failed":
            self._code = 1

    def close(self) -> None:
        self._run.finish(exit_code=self._code)


def make(run: Run) -> WandB | None:
    wanted = options(run, "wandb")
    return None if wanted is None else WandB(run, wanted)
