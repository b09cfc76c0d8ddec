"""The engine's checkpoints, told to primus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.config import JobConfig

    from primus_core.run.context import Run
    from primus_torchtitan.v02.metrics import Metrics


class Checkpoints:
    """In the place of the engine's manager, which does the work."""

    def __init__(self, run: Run, manager: CheckpointManager, metrics: Metrics, job: JobConfig) -> None:
        self.run = run
        self.manager = manager
        self.metrics = metrics
        self.job = job
        self._writing: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def load(self, step: int = -1) -> bool:
        loaded: bool = self.manager.load(step)
        if loaded:
            self.run.note("goes on from a checkpoint")
        return loaded

    def save(self, curr_step: int, last_step: bool = False) -> None:
        if not self.manager._should_save(curr_step, last_step):
            return
        self.run.enter("save", curr_step)
        with self.metrics.pause():
            self.announce()  # the engine waits for the one before as well
            self.manager.save(curr_step, last_step)
        self._writing = curr_step
        if last_step or self.job.checkpoint.async_mode == "disabled":
            self.announce()

    def announce(self) -> None:
        """Tell of the checkpoint that was being written, which is complete when the engine has waited for it."""
        if self._writing is None:
            return
        step, self._writing = self._writing, None
        self.manager._async_wait()
        self.run.checkpoint_saved(step, Path(self.manager.folder) / f"step-{step}")

    def close(self) -> None:
        if self.manager.enable:
            self.announce()
        self.manager.close()
