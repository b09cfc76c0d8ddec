"""What the command line hands to every command as ``click.Context.obj``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from primus_core.plugins.manager import PluginManager


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One launcher on the command line: its own options, and the words behind its ``--`` as they were typed."""

    launcher: str
    options: Mapping[str, Any]
    argv: tuple[str, ...]


@dataclass(kw_only=True)
class State:
    """Global options, the plugins, and the launchers in front of the command, outermost first.

    A command that starts workers (``Command.launches``) always finds at least one launcher here: ``primus train ...``
    is short for ``primus direct -- train ...``.
    """

    debug: bool = False
    dry_run: bool = False
    primusfile: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    chain: tuple[Invocation, ...] = ()
    warn: Callable[[str], None] | None = None
    """Who is told of broken plugins; stderr by default."""

    @property
    def invocation(self) -> Invocation:
        """The outermost launcher: the one that this process carries out; the others stand in its ``argv``."""
        return self.chain[0]

    @cached_property
    def plugins(self) -> PluginManager:
        return PluginManager.load(self.primusfile, self.environ, self.warn)


pass_state = click.make_pass_decorator(State)
