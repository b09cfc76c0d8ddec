"""Training with torchtitan's own ``Trainer``. Imported in workers only, after the patches of the import phase."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from packaging.version import Version

from primus_core.errors import EnvironmentFault
from primus_core.plugins.records import load

if TYPE_CHECKING:
    from primus_core.run.context import Run

ADAPTERS = {(0, 2): "primus_torchtitan.v02.trainer:train"}
"""What drives the engine, by its release: its interfaces change from one to the next, the keys do not."""


def train(run: Run) -> None:
    """Train as ``run.config`` says, in the names of ``JobConfig``. Can be called again in the same process."""
    found = Version(version("torchtitan"))
    adapter = ADAPTERS.get((found.major, found.minor))
    if adapter is None:
        raise EnvironmentFault(f"torchtitan {found} is not supported; {run.backend.install}")
    load(adapter)(run)
