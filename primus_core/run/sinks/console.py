"""Progress for people: one plain line for each log interval; on a terminal a live view (see ``live``)."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.records import Backend, Device
    from primus_core.run.context import Run
    from primus_core.run.sinks import Sink

_BARS = "▁▂▃▄▅▆▇█"


class Console:
    """Writes one line an event. ``attempt`` is named at the end."""

    def __init__(self, out: TextIO, attempt: Path) -> None:
        self.out = out
        self.attempt = attempt
        self.progress = Progress()

    @staticmethod
    def on(out: TextIO, run: Run) -> Sink:
        """The live view on a terminal, plain lines elsewhere."""
        if out.isatty() and os.environ.get("TERM") != "dumb":
            from primus_core.run.sinks.live import Live

            return Live(out, run.attempt)
        return Console(out, run.attempt)

    def event(self, event: Mapping[str, Any]) -> None:
        self.progress.take(event)
        for line in lines(event, self.progress):
            self.print(line)
        if event["event"] in ("run_finished", "run_failed"):
            for line in summary(event, self.progress, self.attempt, self.out.encoding or "ascii"):
                self.print(line)

    def print(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()

    def close(self) -> None:
        self.out.flush()


class Curve:
    """A series in bounded memory: of a long one, means of as many neighbours as it takes."""

    _MOST = 2048

    def __init__(self) -> None:
        self.means: list[float] = []
        self.first: float | None = None
        self.last: float | None = None
        self._open: list[float] = []
        self._width = 1

    def add(self, value: float) -> None:
        self.first = value if self.first is None else self.first
        self.last = value
        self._open.append(value)
        if len(self._open) == self._width:
            self.means.append(math.fsum(self._open) / self._width)
            self._open = []
        if len(self.means) == self._MOST:
            self.means = [(a + b) / 2 for a, b in itertools.batched(self.means, 2)]
            self._width *= 2


class Progress:
    """What is known so far: steps, losses, and from them the time that is left."""

    def __init__(self) -> None:
        self.step = 0
        self.steps: int | None = None
        self.losses = Curve()
        self.valid: float | None = None
        self.checkpoint: int | None = None
        self.latest: Mapping[str, Any] = {}
        self._marks: list[tuple[float, int]] = []

    def take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "expect":
                self.step, self.steps = event["step"], event["steps"]
            case "step":
                self.step = event["step"]
                self.latest = event
                self._marks = [*self._marks[-19:], (time.monotonic(), self.step)]
                if event.get("loss") is not None:
                    self.losses.add(event["loss"])
            case "eval":
                self.valid = event.get("loss")
            case "checkpoint":
                self.checkpoint = event["step"]

    @property
    def seconds_left(self) -> float | None:
        """From the last twenty reports, saving and evaluation included; None until two are there."""
        if self.steps is None:
            return None
        pace: float | None = self.latest.get("step_time")
        if len(self._marks) > 1:
            (then, first), (now, last) = self._marks[0], self._marks[-1]
            pace = (now - then) / max(1, last - first)
        return None if pace is None else pace * (self.steps - self.step)


def header(
    experiment: Experiment,
    *,
    backend: Backend,
    version: str,
    ranks: int | None,
    platform: str,
    devices: tuple[Device, ...],
    attempt: Path,
) -> Iterable[str]:
    """The first lines: what runs, where, and from which files. ``version`` is the engine's."""
    engine = f"{backend.engine} {version}".rstrip()
    model = f", model {experiment.model}" if experiment.model else ""
    yield f"{experiment.exp_name}: {experiment.stage} with {backend.name} ({engine}){model}"
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    yield f"{ranks or '?'} rank{'s' * (ranks != 1)} on {platform}{f' ({names})' if names else ''}"
    yield f"read {', '.join(_short(file, backend.presets, Path.cwd()) for file in experiment.files)}"
    yield f"run folder: {_short(attempt, Path.cwd())}"


def _short(path: Path, *folders: Path) -> str:
    """Relative to the first of the folders that it lies below."""
    return next((str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder)), str(path))


def lines(event: Mapping[str, Any], progress: Progress) -> Iterable[str]:
    """What an event is on paper."""
    match event["event"]:
        case "step":
            yield "  ".join([_position(event["step"], progress.steps), *figures(event), *_left(progress)])
        case "eval":
            yield "  ".join([f"{event['split']} at step {event['step']}", *figures(event)])
        case "checkpoint":
            yield f"checkpoint at step {event['step']}: {event['path']}"
        case "note":
            yield event["message"]


def summary(event: Mapping[str, Any], progress: Progress, attempt: Path, encoding: str) -> Iterable[str]:
    """The last lines: what came of it, the curve, and where everything is."""
    finished = event["event"] == "run_finished"
    parts = [f"{'done' if finished else 'stopped'} after {clock(event['seconds'])}", f"step {progress.step}"]
    if progress.valid is not None:
        parts.append(f"valid loss {progress.valid:.4f}")
    yield ", ".join(parts)
    losses = progress.losses
    if len(losses.means) > 1:
        yield f"loss {losses.first:.4f} {sparkline(losses.means, 40, encoding)} {losses.last:.4f}"
    if finished:
        yield f"run folder: {attempt}"


_FIGURES: Mapping[str, Callable[[float], str]] = {
    "loss": lambda x: f"loss {x:.4f}",
    "grad_norm": lambda x: f"grad {x:.3g}",
    "lr": lambda x: f"lr {x:.2e}",
    "tokens_per_s": lambda x: f"{quantity(x)} tok/s",
    "mfu": lambda x: f"mfu {x:.1%}",
    "step_time": lambda x: f"{x:.2f} s/step" if x >= 0.1 else f"{x * 1000:.1f} ms/step",
    "memory": lambda x: f"{x / 2**30:.1f} GiB",
}


def figures(event: Mapping[str, Any]) -> list[str]:
    """The figures that everybody wants; what is not finite is said."""
    odd = event.get("nonfinite", {})
    return [
        f"{name} {odd[name]}" if name in odd else write(event[name])
        for name, write in _FIGURES.items()
        if name in odd or event.get(name) is not None
    ]


def _position(step: int, steps: int | None) -> str:
    return f"step {step}" if steps is None else f"step {step:>{len(str(steps))}}/{steps}"


def _left(progress: Progress) -> list[str]:
    seconds = progress.seconds_left
    return [] if seconds is None else [f"eta {clock(seconds)}"]


def clock(seconds: float) -> str:
    """``0:28``, ``1:02:03``, ``2d 03:04:05``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def quantity(number: float) -> str:
    """Four digits at most: ``412``, ``12.3k``, ``1.05M``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            value = number / (1e3 if unit == "k" else size)
            return f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def sparkline(values: list[float], width: int, encoding: str = "utf-8") -> str:
    """The values as bars, averaged down to ``width``; ``->`` where the terminal cannot write bars."""
    try:
        _BARS.encode(encoding)
    except UnicodeEncodeError:
        return "->"
    width = min(width, len(values))
    bounds = [round(index * len(values) / width) for index in range(width + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)
