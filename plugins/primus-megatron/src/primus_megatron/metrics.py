"""What is measured between two lines of the log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch


class Meter:
    """Mean losses and step time since the last reading; pauses for saving and evaluating do not count."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Measure from now on."""
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._steps = self._skipped = 0
        self._since = self._clock()
        self._paused = 0.0

    def step(self, skipped: bool) -> None:
        """One more step, which the optimizer may have skipped."""
        self._steps += 1
        self._skipped += skipped

    def add(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Losses of one step."""
        for name, value in losses.items():
            value = value.detach().float().sum()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - began

    def read(self) -> dict[str, float | int]:
        """``loss`` and other means by their names, ``step_time`` in seconds, ``skipped`` steps; then start again.

        Waits for the device: the time covers all work that the steps asked for.
        """
        means = {_NAMES.get(name, name): total.item() / self._counts[name] for name, total in self._sums.items()}
        seconds = self._clock() - self._since - self._paused
        values = {**means, "step_time": seconds / max(self._steps, 1), "skipped": self._skipped}
        self.start()
        return values


_NAMES = {"lm loss": "loss"}
