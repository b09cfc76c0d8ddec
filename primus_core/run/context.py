"""What a worker knows and can do while a backend trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from primus_core.plugins.records import Backend, Device, Phase, Stage
    from primus_core.run.recovery import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this worker stands among the others, from torchrun's variables."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


class Run(Protocol):
    """A run, seen from one rank. The backend's ``train(run)`` gets one."""

    name: str
    stage: Stage
    backend: Backend
    model: str | None
    """The name of the model's preset."""
    config: Mapping[str, Any]
    """The module's parameters, plain, as the engine names them."""
    secret_keys: frozenset[str]
    """Dotted keys of ``config`` whose values must not be shown or sent anywhere."""
    metrics: Mapping[str, Any]
    """The experiment's ``metrics`` section, plain: which sinks, and their options."""
    place: Place
    platform: str
    devices: tuple[Device, ...]
    folder: Path
    """The experiment's folder; checkpoints live here, shared by all attempts."""
    attempt: Path
    """The folder of this attempt: logs, metrics, patches, versions."""

    recovery: Recovery
    """Which restart this is, steps to leave out, and what to do about a bad loss."""

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to save and stop. Ask after each step and agree with the other ranks, which may
        hear of it later. A backend that never asks is ended in the middle of a step."""
        ...

    @property
    def rank(self) -> int: ...

    @property
    def is_reporter(self) -> bool:
        """Whether this rank writes metrics and the console."""
        ...

    def apply_patches(self, phase: Phase) -> None:
        """Apply this phase's patches of the backend; raises ``EnvironmentFault`` when a required one cannot be."""
        ...

    def enter(self, phase: str, step: int | None = None) -> None:
        """Say what the worker is doing (``"data"``, ``"forward"``, ``"save"``...), for failure and hang reports."""
        ...

    def expect(self, steps: int, start: int = 0) -> None:
        """Say that training goes from step ``start`` to step ``steps``: progress and time left follow from it."""
        ...

    def report_step(self, step: int, metrics: Mapping[str, float | int | None]) -> None:
        """Hand over metrics of a log interval; a no-op on other ranks than the reporting one.

        Keys of all backends: ``loss``, ``grad_norm``, ``lr``, ``tokens`` (seen so far), ``step_time`` (seconds),
        ``tokens_per_s``, ``tokens_per_s_per_device``, ``mfu`` (0..1, None where no peak is known), ``memory`` (bytes,
        highest so far). Further keys are kept as they are.
        """
        ...

    def report_eval(self, step: int, metrics: Mapping[str, float | int | None], split: str = "valid") -> None:
        """Hand over the result of an evaluation."""
        ...

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """Say that a checkpoint is complete."""
        ...

    def note(self, message: str) -> None:
        """One line for the console and the run's record, from the reporting rank."""
        ...

    def model_built(self, model: Any) -> None:
        """Let plugins see a model before its optimizer is made."""
        ...

    def builder(self, model: str) -> Callable[..., Any] | None:
        """The builder that a plugin registered for this model, or None for the engine's own."""
        ...
