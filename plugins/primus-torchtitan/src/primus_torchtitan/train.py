"""Training with torchtitan's own ``Trainer``. Imported in workers only, after the patches of the import phase."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from packaging.version import Version

from primus_core.errors import EnvironmentFault
from primus_core.plugins.records import load

if TYPE_CHECKING:
    from primus_core.run.context import Run

ADAPTERS = {(0, 2): "primus_torchtitan.v02"}
"""What drives the engine, by its release: its interfaces change from one to the next, the keys do not."""


def adapter() -> str:
    """The package that drives the installed engine. Raises ``EnvironmentFault`` where there is none for it."""
    found = Version(version("torchtitan"))
    package = ADAPTERS.get((found.major, found.minor))
    if package is None:
        raise EnvironmentFault(f"torchtitan {found} is not supported; pip install primus-torchtitan")
    return package


def train(run: Run) -> None:
    """Train as ``run.config`` says, in the names of ``JobConfig``. Can be called again in the same process."""
    load(f"{adapter()}.trainer:train")(run)
