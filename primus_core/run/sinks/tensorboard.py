"""TensorBoard event files in ``<attempt>/tensorboard``, or in the folder that ``metrics.tensorboard.folder`` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.run.sinks import options, scalars

if TYPE_CHECKING:
    from primus_core.run.context import Run


class TensorBoard:
    """Scalars as ``train/loss``, ``valid/loss``..., in the form that every reader of event files knows."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))

    def event(self, event: Mapping[str, Any]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars(event).items()]
        if values:
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=event["time"], step=event["step"], summary=summary))
        if event["event"] in ("eval", "checkpoint"):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def make(run: Run) -> TensorBoard | None:
    wanted = options(run, "tensorboard")
    if wanted is None:
        return None
    return TensorBoard(run.attempt / wanted.get("folder", "tensorboard"))
