"""Runs side by side: figures, and what differs in configuration, versions, patches, code and hardware."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_core.run import difference
from primus_core.run.attempts import Attempt, named
from primus_core.run.difference import Difference
from primus_core.run.history import History


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs, under a name that tells it from the others."""

    label: str
    history: History


def sides(runs: Sequence[Path]) -> list[Side]:
    """The runs with the shortest parts of their paths that differ. Raises ``UserError`` for what is no run."""
    histories = [History(named(run)) for run in runs]
    return [Side(label, history) for label, history in zip(_labels(runs), histories, strict=True)]


def figures(sides: Iterable[Side]) -> list[tuple[str, list[str]]]:
    """Rows of results, each with one text per run; rows that no run has are left out."""
    rows = [(title, [show(side.history) for side in sides]) for title, show in _FIGURES]
    return [(title, cells) for title, cells in rows if any(cells)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is compared, of an attempt or of today: ``run.json``, ``origins.json``, ``git.diff``, ``patches.json``."""

    about: Mapping[str, Any]
    origins: Mapping[str, Mapping[str, Any]]
    diff: str
    patches: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, attempt: Attempt) -> Facts:
        return cls(about=attempt.about, origins=attempt.origins, diff=attempt.diff, patches=attempt.patches)


def differences(sides: Sequence[Facts]) -> dict[str, list[Difference]]:
    """By section; a configuration value is shown with the place that it came from."""
    patches = [difference.patches(side.patches) for side in sides if side.patches is not None]
    return {
        "configuration": _with_places([side.origins for side in sides]),
        "code": difference.between([difference.code(side.about, side.diff) for side in sides]),
        "versions": difference.between([side.about.get("versions", {}) for side in sides]),
        "patches": difference.between(patches) if len(patches) == len(sides) else [],
        "data": difference.between([difference.data(side.about) for side in sides]),
        "hardware": difference.between([difference.hardware(side.about) for side in sides]),
        "environment": difference.between([difference.environment(side.about) for side in sides]),
    }


def _with_places(origins: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Difference]:
    rows = difference.between([difference.configuration(each) for each in origins])

    def shown(side: Mapping[str, Mapping[str, Any]], name: str) -> str | None:
        return f"{side[name]['value']}  ({side[name]['origin']})" if name in side else None

    return [Difference(row.name, tuple(shown(side, row.name) for side in origins)) for row in rows]


def _labels(runs: Sequence[Path]) -> list[str]:
    paths = [Path(os.path.normpath(run.absolute())) for run in runs]
    parts = [[part for part in path.parts if part != "attempts"] for path in paths]
    same = 0
    while all(len(p) > same + 1 for p in parts) and len({p[same] for p in parts}) == 1:
        same += 1
    return ["/".join(p[same:]) for p in parts]


def _number(name: str, form: str, pick: Callable[[History, str], float | None]) -> Callable[[History], str]:
    def show(history: History) -> str:
        value = pick(history, name)
        return "" if value is None else format(value, form)

    return show


def _last_of(split: str) -> Callable[[History, str], float | None]:
    return lambda history, name: history.last(name, split)


def _memory(history: History) -> str:
    points = history.curve("memory")
    return f"{max(value for _, value in points) / 2**30:.2f} GiB" if points else ""


_FIGURES: Sequence[tuple[str, Callable[[History], str]]] = (
    ("backend", lambda history: str(history.latest.about.get("backend") or "")),
    ("model", lambda history: str(history.latest.about.get("model") or "")),
    ("state", lambda history: str(history.latest.status())),
    ("attempts", lambda history: str(len(history.attempts)) if len(history.attempts) > 1 else ""),
    ("ranks", lambda history: str(history.latest.world_size or "")),
    ("last step", _number("step", ".0f", History.last)),
    ("final loss", _number("loss", ".6f", History.last)),
    ("valid loss", _number("loss", ".6f", _last_of("valid"))),
    ("tokens/s", _number("tokens_per_s", ",.0f", History.median)),
    ("step time, s", _number("step_time", ".4g", History.median)),
    ("MFU", _number("mfu", ".1%", History.median)),
    ("memory", _memory),
)
