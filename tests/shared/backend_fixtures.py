"""Fixtures for the tests of a backend: experiments, resolved and checked.

A ``conftest.py`` imports them, and has a fixture ``head``: the lines of an experiment before its first override.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from primus_core.config.check import check
from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.resolve import resolve
from primus_core.errors import ConfigError, Problem
from primus_core.plugins.manager import PluginManager


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    return PluginManager.load(environ={})


@pytest.fixture
def experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: PluginManager, head: str
) -> Callable[..., Experiment]:
    """An experiment of these overrides, in the file ``x.yaml``."""
    monkeypatch.chdir(tmp_path)
    above = head

    def make(overrides: str, *words: str, head: str = above) -> Experiment:
        Path("x.yaml").write_text(head + indent(overrides, "      "))
        return resolve(Path("x.yaml"), None, words, plugins, environ={})

    return make


@pytest.fixture
def problems(experiment: Callable[..., Experiment], plugins: PluginManager, head: str) -> Callable[..., list[str]]:
    """What is wrong with an experiment of these overrides, as lines."""
    above = head

    def find(overrides: str, *words: str, head: str = above, **place: Any) -> list[str]:
        made = experiment(overrides, *words, head=head)
        try:
            found: Sequence[Problem] = check(made, CheckContext(**place), plugins)
        except ConfigError as error:
            found = error.problems
        return [str(problem) for problem in found]

    return find
