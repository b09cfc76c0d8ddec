"""What a launcher is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.records import Backend, Device, EnvVar


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One launch: the inner command, the launcher's own options and the place it starts from.

    ``argv`` is what stands behind ``--``, word by word: ``("train", "pretrain", "--config", "x.yaml")``.
    ``attempt`` is the folder that the run will use; ``environ`` the user's shell. ``note`` shows the user a line.
    """

    argv: tuple[str, ...]
    options: Mapping[str, Any]
    experiment: Experiment
    backend: Backend
    attempt: Path
    environ: Mapping[str, str]
    platform: str
    devices: tuple[Device, ...]
    defaults: tuple[EnvVar, ...] = ()
    """What plugins propose for the workers' environment, weakest of all."""
    note: Callable[[str], None] = field(default=lambda message: None)
    nested: bool = False
    """Whether ``argv`` starts with another launcher."""
    primusfile: Path | None = None
    paths: tuple[Path, ...] = ()
    """Files and folders that the command line names."""


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A file that must be there before the command runs."""

    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Exactly what will be done: files to write, environment to add, one command (argv, never a shell)."""

    argv: tuple[str, ...]
    env: tuple[EnvVar, ...] = ()
    files: tuple[PlanFile, ...] = field(default=())
    ranks: int | None = None
    """How many ranks there will be on all machines; None where that is not known yet."""
    node: int = 0
    """Which of the run's machines this is. The first one writes the files, the others wait for them."""
    again: str = ""
    """What starts primus once more, elsewhere (``"podman"``): that one trains, and speaks to the user itself."""
    inside: tuple[EnvVar, ...] = ()
    """What the primus inside will set for its workers, as far as this one can tell: to be shown, not to be set."""
    lifeline: bool = False
    """Whether the command's standard input stays open as long as this process lives, and tells its end."""
    cleanup: tuple[tuple[str, ...], ...] = ()
    """Commands that remove what may be left, however the command ended. It is no error if nothing is."""
    after: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """What to run at the very end if a signal came, by its number."""
    hang_timeout: float | None = None
    """Seconds that a rank may stand still; 0 for ever, None for the default."""
    submits: bool = False
    """The command hands the work over and ends at once; the run itself begins later."""
