"""Real training with the real engine on the CPU, tiny sizes: what each kind of model and each way to split it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

type Results = dict[str, dict[str, Any]]

MLA = {
    "group_query_attention": False,
    "num_query_groups": 1,
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 12,
    "rope_type": "rope",
}
MOE = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "moe_token_dispatcher_type": "alltoall",
    "moe_aux_loss_coeff": 0.01,
    "moe_grouped_gemm": True,
}
HYBRID = {"hybrid_layer_pattern": "M-M*", "mamba_head_dim": 16, "mamba_state_dim": 16, "mamba_num_groups": 2}
SHARDED = {"use_distributed_optimizer": True}


@pytest.fixture(scope="module")
def one(trained: Callable[..., Results]) -> Results:
    return trained(
        1,
        {
            "dense": {"eval_iters": 1, "eval_interval": 3, "save": "checkpoints"},
            "sharded": SHARDED,
            "of a plugin": {"model": "somebody's"},
            "tied": {"untie_embeddings_and_output_weights": False, "log_interval": 4},
            "bf16": {"bf16": True},
            "mla": MLA,
            "moe": MOE,
            "mtp": {"mtp_num_layers": 1},
            "deepseek": MLA | MOE | {"mtp_num_layers": 1, "moe_layer_freq": "([0]*1+[1]*1)", "bf16": True},
            "hybrid": HYBRID,
            "window": {"window_size": "(8,0)"},
            "documents": {"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True},
            "recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        },
    )


@pytest.fixture(scope="module")
def two(trained: Callable[..., Results]) -> Results:
    tensor = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    return trained(
        2,
        {
            "dp": {"eval_iters": 1, "eval_interval": 3},
            "dp_sharded": SHARDED | {"overlap_grad_reduce": True, "overlap_param_gather": True},
            "tp": tensor | SHARDED,
            "tp_hybrid": tensor | HYBRID,
            "pp": SHARDED | {"pipeline_model_parallel_size": 2},
            "ep": MOE | SHARDED | {"expert_model_parallel_size": 2},
            "ep_mtp": MOE | {"expert_model_parallel_size": 2, "mtp_num_layers": 1},
        },
    )


def losses(result: dict[str, Any]) -> list[float]:
    return [step["loss"] for step in result["steps"]]


CASES_OF_ONE = "dense sharded bf16 mla moe mtp deepseek hybrid window documents recompute".split()


@pytest.mark.parametrize("case", CASES_OF_ONE)
def test_learns_on_one_rank(one: Results, case: str):
    values = losses(one[case])
    assert len(values) == 6
    assert all(map(math.isfinite, values))
    assert abs(values[0] - math.log(256)) < 0.3
    assert values[-1] < values[0] - 0.1


@pytest.mark.parametrize("case", ["dp", "dp_sharded", "tp", "tp_hybrid", "pp", "ep", "ep_mtp"])
def test_learns_on_two_ranks(two: Results, case: str):
    values = losses(two[case])
    assert len(values) == 6
    assert values[-1] < values[0] - 0.1


def test_two_ranks_compute_what_one_does(one: Results, two: Results):
    assert losses(two["dp"]) == pytest.approx(losses(one["dense"]), abs=1e-5)
    assert losses(two["dp_sharded"]) == pytest.approx(losses(one["dense"]), abs=1e-5)
    assert losses(two["pp"])[0] == pytest.approx(losses(one["dense"])[0], abs=0.1)


def test_sharding_the_optimizer_changes_nothing(one: Results):
    assert losses(one["sharded"]) == pytest.approx(losses(one["dense"]), abs=1e-6)


def test_a_model_that_a_plugin_builds(one: Results):
    assert losses(one["of a plugin"]) == losses(one["dense"])
    assert one["of a plugin"]["parameters"] == one["dense"]["parameters"]


def test_recomputing_changes_nothing(one: Results):
    assert losses(one["recompute"]) == pytest.approx(losses(one["dense"]), abs=1e-6)


def test_documents_that_do_not_see_each_other_change_the_loss(one: Results):
    assert losses(one["documents"])[-1] != losses(one["dense"])[-1]


def test_metrics_of_a_step(one: Results):
    step = one["dense"]["steps"][3]
    assert step["step"] == 4
    assert step["tokens"] == 4 * 8 * 64
    assert step["tokens_per_s"] == pytest.approx(8 * 64 / step["step_time"])
    assert step["tokens_per_s_per_device"] == step["tokens_per_s"]
    assert 0 < step["grad_norm"] < 100
    assert step["lr"] == pytest.approx(1e-4 + 0.9e-3 * (1 + math.cos(math.pi * 4 / 6)) / 2)
    assert step["memory"] > 100e6
    assert step["mfu"] is None
    assert step["skipped"] == 0


def test_losses_are_means_over_the_log_interval(one: Results):
    assert [step["step"] for step in one["tied"]["steps"]] == [1, 4, 6]


def test_rates_of_two_ranks_are_of_both(two: Results):
    step = two["dp"]["steps"][-1]
    assert step["tokens_per_s"] == pytest.approx(8 * 64 / step["step_time"])
    assert step["tokens_per_s_per_device"] == pytest.approx(step["tokens_per_s"] / 2)


def test_evaluations(one: Results, two: Results):
    evals = one["dense"]["evals"]
    assert [(e["step"], e["split"]) for e in evals] == [(3, "valid"), (6, "valid"), (6, "valid"), (6, "test")]
    assert all(4 < e["loss"] < 6 for e in evals)
    assert two["dp"]["evals"][0]["loss"] == pytest.approx(evals[0]["loss"], abs=1e-5)


def test_life_of_a_run(one: Results):
    dense = one["dense"]
    assert dense["expect"] == [6, 0]
    assert {"data", "forward", "eval", "save"} <= set(dense["phases"])
    assert [step for step, _ in dense["checkpoints"]] == [3, 6]
    assert dense["parameters"] == 2 * 256 * 64 + 2 * (64 * 64 * 3 + 3 * 64 * 128 + 2 * 64) + 64


def test_one_line_says_that_transformer_engine_is_missing(one: Results):
    assert one["dense"]["notes"] == [
        "Transformer Engine is not installed: Megatron's local layers with PyTorch's attention"
    ]
    assert one["moe"]["notes"][0].endswith("; off: moe_grouped_gemm")
