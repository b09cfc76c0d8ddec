"""``metrics.jsonl``: one event a line, valid JSON always."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EVENTS = ("run_started", "expect", "step", "eval", "checkpoint", "note", "run_finished", "run_failed")


def plain(value: Any) -> Any:
    """A number as JSON knows it: scalars of arrays become Python's, everything else stays."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.item() if hasattr(value, "item") else float(value)


def make(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """An event. What is not finite becomes ``null`` and is named in ``nonfinite``: ``{"loss": "nan"}``."""
    event: dict[str, Any] = {"event": kind, "time": round(time.time(), 3)}
    nonfinite: dict[str, str] = {}
    for name, raw in fields.items():
        value = plain(raw)
        if isinstance(value, float) and not math.isfinite(value):
            nonfinite[name] = str(value)
            value = None
        event[name] = value
    if nonfinite:
        event["nonfinite"] = nonfinite
    return event


class JsonLines:
    """Appends events to a file; each is on disk before the next (flushed, not synced)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def event(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a file. A last line that was cut off while it was written is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
