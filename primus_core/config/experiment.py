"""An experiment after everything was read, merged and substituted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin, Problem

if TYPE_CHECKING:
    from primus_core.plugins.records import Device, Ref, Stage


type Layer = Literal["user defaults", "module defaults", "model preset", "derived", "experiment", "command line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What one run is to do.

    ``config`` holds the parameters of the module that runs, as the engine names them; ``launch``, ``env``
    and ``metrics`` the sections of those names. ``files`` lists every file that was read, in the order of reading.
    """

    file: Path
    work_group: str
    user_name: str
    exp_name: str
    workspace: Path
    module: str
    stage: Stage
    backend: str
    model: str | None
    config: Tree
    launch: Tree
    env: Tree
    metrics: Tree = field(default_factory=lambda: Tree(Origin("default")))
    stages: tuple[Stage, ...] = ()
    """What the file has modules for."""
    requires: Leaf | None = None
    """A list of plugin distributions that must be installed, as requirement specifiers."""
    preset: str | None = None
    """The module defaults that were taken."""
    builder: Ref | None = None
    """What builds the model in place of the engine, where a plugin registered it so."""
    files: tuple[Path, ...] = ()
    notices: tuple[Problem, ...] = ()
    layers: Mapping[str, Layer] = field(default_factory=dict)
    """The layer of each source that values came from; ``experiment`` for a source that is not listed."""
    secrets: frozenset[str] = frozenset()
    """Dotted keys whose values must not be shown: of ``config``, and of other sections with their names in front."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key; a mapping comes as plain dictionaries."""
        node = self.config.find(tuple(key.split(".")))
        if node is None:
            return default
        return node.value if isinstance(node, Leaf) else node.plain()

    def origin_of(self, key: str) -> Origin:
        """Where a dotted key got its value; the experiment file itself for a key that nobody set."""
        node = self.config.find(tuple(key.split(".")))
        return node.origin if node is not None else Origin(str(self.file))

    def by_user(self, origin: Origin) -> bool:
        """Whether what is written there was written by the user, in an experiment or on the command line."""
        return self.layers.get(origin.source, "experiment") in ("experiment", "command line")

    @property
    def folder(self) -> Path:
        """Where this experiment's runs are kept: ``workspace/work_group/user_name/exp_name``."""
        return self.workspace / self.work_group / self.user_name / self.exp_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """What is known about the place a run will have. ``None`` means unknown: check nothing that needs it."""

    world_size: int | None = None
    platform: str | None = None
    devices: tuple[Device, ...] = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    """Distributions of the engine's environment and their versions; empty when unknown."""
