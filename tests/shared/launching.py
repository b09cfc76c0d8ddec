"""Questions to launchers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from primus_core.config.experiment import Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin
from primus_core.launch.plan import LaunchRequest
from primus_core.plugins.records import Backend, Device

PLACE = Origin("x.yaml", 9, 3)


def tree(values: dict[str, Any]) -> Tree:
    items = {
        name: tree(value) if isinstance(value, dict) else Leaf(value, PLACE, PLACE) for name, value in values.items()
    }
    return Tree(PLACE, items)


def request(
    *argv: str,
    options: dict[str, Any] | None = None,
    launch: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    platform: str = "cpu",
    **more: Any,
) -> LaunchRequest:
    experiment = Experiment(
        file=Path("x.yaml"),
        work_group="g",
        user_name="u",
        exp_name="e",
        workspace=Path("o"),
        module="pre_trainer",
        stage="pretrain",
        backend="toy",
        model=None,
        config=tree({}),
        launch=tree(launch or {}),
        env=tree(env or {}),
    )
    backend = Backend(
        name="toy", summary="", engine="toy", engine_versions="", trainer="x:y", schemas=Path(), presets=Path("presets")
    )
    return LaunchRequest(
        argv=argv or ("train", "pretrain", "--config", "x.yaml"),
        options=options or {},
        experiment=experiment,
        backend=backend,
        attempt=Path("/runs/0001"),
        environ=environ or {},
        platform=platform,
        devices=(Device(name="Device", arch="gfx942" if platform == "rocm" else ""),),
        **more,
    )
