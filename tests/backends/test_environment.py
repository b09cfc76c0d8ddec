"""What workers get in their environment where nobody said anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_core.config.experiment import Experiment
from primus_core.config.tree import Tree
from primus_core.errors import Origin
from primus_core.launch.plan import LaunchRequest
from primus_core.plugins.manager import PluginManager

PLUGINS = PluginManager.load(environ={})
NONE = Tree(Origin("x.yaml"))


def proposed(backend: str, platform: str) -> dict[str, str]:
    experiment = Experiment(
        file=Path("x.yaml"),
        work_group="",
        user_name="",
        exp_name="x",
        workspace=Path(),
        module="pre_trainer",
        stage="pretrain",
        backend=backend,
        model=None,
        config=NONE,
        launch=NONE,
        env=NONE,
    )
    request = LaunchRequest(
        argv=(),
        options={},
        experiment=experiment,
        backend=PLUGINS.backend(backend),
        attempt=Path(),
        environ={},
        platform=platform,
        devices=(),
    )
    found = [each.record for each in PLUGINS.contributions("primus_launch_env", request=request)]
    assert len({variable.name for variable in found}) == len(found), "proposed twice"
    return {variable.name: variable.value for variable in found}


@pytest.mark.parametrize("backend", [entry.record.name for entry in PLUGINS.named("primus_backends").values()])
def test_scratch_memory_is_kept_on_amd_gpus_whatever_the_engine(backend: str) -> None:
    assert proposed(backend, "rocm")["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert "HSA_NO_SCRATCH_RECLAIM" not in proposed(backend, "cuda")
