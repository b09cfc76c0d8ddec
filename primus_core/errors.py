"""What can go wrong, where it stands in the user's files, and the exit code that says so."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Literal, NamedTuple


class ExitCode(IntEnum):
    """The exit codes of every ``primus`` command are a contract."""

    DONE = 0
    TRAINING_FAILED = 1
    USER_INPUT = 2
    ENVIRONMENT = 3
    HANG = 4


class Origin(NamedTuple):
    """Where a value was written.

    ``source`` is a file's path as the user would write it, or a phrase such as ``command line, argument 3``.
    Lines and columns count from 1, as editors do; ``0`` means that there are none.
    """

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


class Problem(NamedTuple):
    """One thing to tell the user about the input: an error stops the command, a notice does not."""

    origin: Origin
    message: str
    severity: Literal["error", "notice"] = "error"

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


class PrimusError(Exception):
    """Base of all errors that the command line shows as a message, without a traceback."""

    exit_code: ExitCode = ExitCode.TRAINING_FAILED


class UserError(PrimusError):
    """The input is wrong: a file, an argument, a value."""

    exit_code = ExitCode.USER_INPUT


class ConfigError(UserError):
    """All problems that were found in the configuration, at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.origin))
        super().__init__("\n".join(map(str, self.problems)))


class EnvironmentFault(PrimusError):
    """The installation or the machine is wrong: a missing package, a plugin that cannot be used, no GPU."""

    exit_code = ExitCode.ENVIRONMENT


class TrainingFailed(PrimusError):
    """A run started and did not end well."""


class BadLoss(TrainingFailed):
    """The loss is not finite, or far above what it was, and the configuration says that this is not to be."""


class RunHung(PrimusError):
    """A run made no progress within the time that was set."""

    exit_code = ExitCode.HANG
