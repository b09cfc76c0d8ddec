"""Short ways to read the values of an experiment and to complain about them, for the checks of plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from primus_core.config.experiment import Experiment
from primus_core.errors import Problem


@dataclass(frozen=True, slots=True)
class Values:
    """The values of an experiment by their dotted keys; None for a key that nobody set."""

    experiment: Experiment

    def __getitem__(self, key: str) -> Any:
        return self.experiment.get(key)

    def size(self, key: str) -> int:
        """A parallel size: 1 when nobody set it."""
        return self[key] or 1

    def largest(self, *keys: str) -> str:
        """The key with the largest value: the one to change when their product does not fit."""
        return max(keys, key=self.size)

    def by_user(self, key: str) -> bool:
        """Whether an experiment or the command line set it, rather than a preset."""
        return self.experiment.by_user(self.experiment.origin_of(key))

    def problem(self, key: str, message: str, severity: Literal["error", "notice"] = "error") -> Problem:
        """A problem at the place of a value."""
        return Problem(self.experiment.origin_of(key), f"{key}: {message}", severity)
