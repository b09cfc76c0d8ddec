"""TensorBoard event files in ``<attempt>/tensorboard``, or in the folder that ``metrics.tensorboard.folder`` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.run.sinks import options, scalars

if TYPE_CHECKING:
    from primus_core.run.context import Run


class TensorBoard:
    """Scalars as ``train/loss``, ``valid/loss``..., notes as text."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = Writer(str(folder))

    def event(self, event: Mapping[str, Any]) -> None:
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event["step"])
        if event["event"] in ("eval", "checkpoint"):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def make(run: Run) -> TensorBoard | None:
    wanted = options(run, "tensorboard")
    if wanted is None:
        return None
    return TensorBoard(run.attempt / wanted.get("folder", "tensorboard"))
