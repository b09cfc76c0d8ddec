"""Sizes that are refused before a launch are those that the engine refuses, and no others."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.config.values import Values
from primus_core.errors import Origin
from primus_torchtitan import checks

HERE = Origin("x.yaml", 1, 1)


def values(**sections: dict[str, Any]) -> Values:
    tree = {
        name: Tree(HERE, {key: Leaf(value, HERE, HERE) for key, value in section.items()})
        for name, section in sections.items()
    }
    experiment = Experiment(
        file=Path("x.yaml"),
        work_group="",
        user_name="",
        exp_name="x",
        workspace=Path(),
        module="pre_trainer",
        stage="pretrain",
        backend="torchtitan",
        model=None,
        config=Tree(HERE, tree),
        launch=Tree(HERE),
        env=Tree(HERE),
    )
    return Values(experiment)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
def test_degrees(world: int) -> None:
    for replicate, shard, cp, tp, pp in product((1, 2), (-1, 1, 2, 4), (1, 2), (1, 2, 3), (1, 2)):
        given = {
            "data_parallel_replicate_degree": replicate,
            "data_parallel_shard_degree": shard,
            "context_parallel_degree": cp,
            "tensor_parallel_degree": tp,
            "pipeline_parallel_degree": pp,
        }
        try:
            found = ParallelDims(replicate, shard, cp, tp, pp, ep=1, etp=1, world_size=world)
        except AssertionError:
            accepted = False
        else:
            # replicas without shards go by DDP, which the engine refuses together with others when it builds the model
            accepted = not (replicate > 1 and found.dp_shard * cp == 1 and tp * pp > 1)
        problems = [*checks.world_size(values(parallelism=given), CheckContext(world_size=world))]
        assert accepted == (not problems), (given, problems)


@pytest.mark.parametrize("name", ["1F1B", "Interleaved1F1B"])
def test_stages(name: str) -> None:
    for layers, pp, first, last in product((1, 2, 3, 5, 8, 16), (2, 3, 4, 8), (0, 1, 3), (0, 1, 2)):
        stages = pp if name == "1F1B" else 2 * pp
        given = {
            "pipeline_parallel_degree": pp,
            "pipeline_parallel_schedule": name,
            "pipeline_parallel_first_stage_less_layers": first,
            "pipeline_parallel_last_stage_less_layers": last,
        }
        try:
            generate_llm_fqn_per_model_part(stages, layers, first, last)
            accepted = True
        except ValueError:
            accepted = False
        model = {"name": "llama3", "flavor": "8B", "n_layers": layers}
        problems = [*checks.pipeline(values(parallelism=given, model=model), CheckContext())]
        assert accepted == (not problems), (layers, given, problems)
