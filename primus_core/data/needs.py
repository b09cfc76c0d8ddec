"""The optional packages of ``primus-core[data]``: imported where they are used, named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from primus_core.errors import EnvironmentFault


def need(module: str, install: str = "'primus-core[data]'") -> Any:
    """Import ``module``, or raise ``EnvironmentFault`` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise EnvironmentFault(f"{error.name} is not installed: pip install {install}") from error
