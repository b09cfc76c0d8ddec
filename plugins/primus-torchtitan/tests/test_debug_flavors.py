"""The engine's own flavors for tests, as they are; and four ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

type Results = dict[str, dict[str, Any]]

FLAVORS = (
    *("llama3", "llama3/debugmodel_flex_attn", "llama4", "qwen3", "qwen3/debugmodel_moe"),
    *("deepseek_v3", "deepseek_v3/debugmodel_flex_attn", "gpt_oss"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [1, 2])
def test_debug_flavors_train(trained: Callable[..., Results], ranks: int) -> None:
    def case(flavor: str) -> dict[str, Any]:
        kind = "bfloat16" if flavor == "gpt_oss" else "float32"
        experts = ranks == 2 and flavor.partition("/")[0] in ("llama4", "deepseek_v3")
        return {
            "model": flavor,
            "training": {"steps": 3, "local_batch_size": 1, "seq_len": 64, "mixed_precision_param": kind},
            **({"parallelism": {"expert_parallel_degree": 2}} if experts else {}),
        }

    for flavor, result in trained(ranks, {flavor: case(flavor) for flavor in FLAVORS}).items():
        losses = [step["loss"] for step in result["steps"]]
        assert len(losses) == 3 and all(map(math.isfinite, losses)), flavor


@pytest.mark.slow
def test_four_ranks(trained: Callable[..., Results], tmp_path: Any) -> None:
    """Shards and replicas, pipelines and tensors at once: the same as one rank."""
    saving = {"checkpoint": {"enable": True}}
    trained(1, {"seed": {"checkpoint": {"enable": True, "create_seed_checkpoint": True}, "folder": str(tmp_path)}})
    saving["checkpoint"]["initial_load_path"] = f"{tmp_path}/checkpoints/step-0"  # type: ignore[assignment]
    one = trained(1, {"one": {**saving, "training": {"local_batch_size": 8}}})["one"]

    def split(batch: int, **parallelism: Any) -> dict[str, Any]:
        return {**saving, "training": {"local_batch_size": batch}, "parallelism": parallelism}

    four = trained(
        4,
        {
            "replicated shards": split(2, data_parallel_replicate_degree=2, data_parallel_shard_degree=2),
            "sharded tensors": split(4, tensor_parallel_degree=2),
            "sharded pipeline": split(4, pipeline_parallel_degree=2),
            "pipeline of tensors": split(8, pipeline_parallel_degree=2, tensor_parallel_degree=2),
        },
    )
    for name, result in four.items():
        for key in ("loss", "grad_norm"):
            ours, theirs = ([step[key] for step in each["steps"]] for each in (result, one))
            assert ours == pytest.approx(theirs, rel=1e-3), (name, key)


@pytest.mark.slow
def test_compiled(trained: Callable[..., Results]) -> None:
    short = {"training": {"steps": 2}}
    results = trained(1, {"plain": short, "compiled": {**short, "compile": {"enable": True}}})
    losses = [[step["loss"] for step in result["steps"]] for result in results.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
