"""Fixtures for pytest: ``pytest_plugins = ["primus_core.testing.fixtures"]`` in the topmost ``conftest.py``.

They are asked for by name and not registered by an entry point: that would import this module into every run of pytest
on a machine that has primus-core, also of projects that have nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from primus_core.testing.project import Project


@pytest.fixture
def primus_project(tmp_path: Path) -> Callable[[Mapping[str, str]], Project]:
    """``primus_project({"experiment.yaml": "..."}).run("train", "pretrain", "--config", "experiment.yaml")``."""

    def make(files: Mapping[str, str]) -> Project:
        project = Project(tmp_path / "project")
        project.folder.mkdir(exist_ok=True)
        project.write(files)
        return project

    return make
