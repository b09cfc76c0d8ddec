"""A training over all its attempts: which steps count, and where it was taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primus_core.run.attempts import Attempt
from primus_core.run.chart import Series

type Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one start of the workers."""

    attempt: Attempt
    events: Sequence[Event]

    @property
    def first(self) -> int | None:
        """Its first step."""
        return next((event["step"] for event in self.events if event["event"] == "step"), None)


@dataclass(frozen=True)
class History:
    """Attempts of one experiment, oldest first. A step that a later start repeated counts as repeated."""

    attempts: Sequence[Attempt]

    @property
    def latest(self) -> Attempt:
        return self.attempts[-1]

    @cached_property
    def parts(self) -> list[Part]:
        return [part for attempt in self.attempts for part in _parts(attempt) if part.first is not None]

    @property
    def restarts(self) -> list[tuple[int, str]]:
        """The first step after each restart, and the attempt that it belongs to."""
        return [(part.first or 0, part.attempt.folder.name) for part in self.parts[1:]]

    @property
    def splits(self) -> list[str]:
        """What was evaluated."""
        return sorted({str(e["split"]) for part in self.parts for e in part.events if e["event"] == "eval"})

    def curve(self, name: str, split: str | None = None) -> Series:
        """``(step, value)`` of a metric of the training, or of the evaluation of ``split``, as far as it counts."""
        points: dict[int, float] = {}
        for part in self.parts:
            points = {step: value for step, value in points.items() if step < (part.first or 0)}
            points |= _points(part.events, name, split)
        return sorted(points.items())

    def repeated(self, name: str, split: str | None = None) -> list[Series]:
        """Pieces of curves that a later start took back, each up to its end."""
        pieces: list[Series] = []
        for index, part in enumerate(self.parts):
            limit = min((later.first or 0 for later in self.parts[index + 1 :]), default=None)
            points = sorted(_points(part.events, name, split).items())
            if limit is not None and points and points[-1][0] >= limit:
                kept = sum(step < limit for step, _ in points)
                pieces.append(points[max(0, kept - 1) :])
        return pieces

    def nonfinite(self, name: str) -> list[tuple[int, str]]:
        """The steps whose value was ``nan`` or ``inf``."""
        events = (event for part in self.parts for event in part.events if event["event"] == "step")
        return [(event["step"], event["nonfinite"][name]) for event in events if name in event.get("nonfinite", {})]

    def values(self, name: str) -> list[float]:
        """Of all steps but the first of each start, which pays for compilation and warming up."""
        return [
            event[name]
            for part in self.parts
            for event in [e for e in part.events if e["event"] == "step"][1:]
            if isinstance(event.get(name), int | float)
        ]

    def median(self, name: str) -> float | None:
        """Of ``values``; None without any."""
        values = sorted(self.values(name))
        return values[len(values) // 2] if values else None

    def last(self, name: str, split: str | None = None) -> float | None:
        curve = self.curve(name, split)
        return curve[-1][1] if curve else None


def _parts(attempt: Attempt) -> Iterator[Part]:
    starts = [i for i, event in enumerate(attempt.events) if event["event"] == "run_started"]
    for begin, end in zip(starts or [0], [*starts[1:], len(attempt.events)], strict=True):
        yield Part(attempt, attempt.events[begin:end])


def _points(events: Sequence[Event], name: str, split: str | None) -> dict[int, float]:
    wanted = "step" if split is None else "eval"
    return {
        event["step"]: event[name]
        for event in events
        if event["event"] == wanted and event.get("split") == split and isinstance(event.get(name), int | float)
    }
