"""Metrics as a table: ``metrics: {sinks: [csv], csv: {columns: [step, loss]}}``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.plugins import hookimpl
from primus_core.plugins.records import MetricSink

if TYPE_CHECKING:
    from primus_core.run.context import Run


@hookimpl
def primus_metric_sinks() -> Iterable[MetricSink]:
    yield MetricSink(name="csv", summary="A table in the attempt's folder", factory="primus_csv_sink:make")


def make(run: Run) -> Table | None:
    from primus_core.run.sinks import options

    asked = options(run, "csv")
    return None if asked is None else Table(run.attempt / "metrics.csv", asked.get("columns", ["step", "loss"]))


class Table:
    """One row per step; a metric that a step does not have is an empty cell."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, columns, extrasaction="ignore")
        self._rows.writeheader()

    def event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "step":
            self._rows.writerow(event)
            self._file.flush()

    def close(self) -> None:
        self._file.close()
