"""Real training with the real engine on the CPU, tiny sizes: what each kind of model and each way to split it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

type Results = dict[str, dict[str, Any]]

SMALL = {"flavor": "debugmodel", "dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 256}
LLAMA = {**SMALL, "name": "llama3"}
QWEN = {**SMALL, "name": "qwen3", "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 128}
SHORT = {"training": {"steps": 3, "local_batch_size": 2}}
BATCH_OF_8 = {"training": {"local_batch_size": 8}}
MODELS: dict[str, dict[str, Any]] = {
    "llama4": {**SMALL, "name": "llama4"},
    "qwen3": QWEN,
    "qwen3_moe": {
        **QWEN,
        "flavor": "debugmodel_moe",
        "moe_inter_dim": 64,
        "moe_args": {"num_experts": 8, "top_k": 2},
    },
    "deepseek_v3": {**SMALL, "name": "deepseek_v3", "inter_dim": 128, "moe_inter_dim": 64},
    "gpt_oss": {**SMALL, "name": "gpt_oss", "moe_inter_dim": 64, "n_kv_heads": 2, "head_dim": 16},
    "flex": {**LLAMA, "flavor": "debugmodel_flex_attn"},
    "tied": {**LLAMA, "flavor": "1B", "n_kv_heads": 2},
}


def checkpoint(**options: Any) -> dict[str, Any]:
    return {"checkpoint": {"enable": True, **options}}


def case(model: str, **more: Any) -> dict[str, Any]:
    preset = {"preset": "llama3.2_1B"} if model == "tied" else {}
    kind = "bfloat16" if model == "gpt_oss" else "float32"
    training = {**SHORT["training"], "mixed_precision_param": kind}
    return {"model": MODELS[model], "training": training, **preset, **more}


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seed")


@pytest.fixture(scope="module")
def one(trained: Callable[..., Results], seed: Path) -> Results:
    started = checkpoint(initial_load_path=f"{seed}/checkpoints/step-0")
    experts = checkpoint(initial_load_path=f"{seed}/experts/checkpoints/step-0")
    made = checkpoint(create_seed_checkpoint=True)
    return trained(
        1,
        {
            "seed": {**made, "folder": str(seed)},
            "seed of experts": {**case("qwen3_moe"), **made, "folder": f"{seed}/experts"},
            "started": {**started, **BATCH_OF_8},
            "experts": {**case("qwen3_moe"), **experts, "training": {"steps": 3, "local_batch_size": 4}},
            "accumulated": {**started, "training": {"local_batch_size": 2, "global_batch_size": 8}},
            "recomputed": {"activation_checkpoint": {"mode": "full"}},
            "selective": {"activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"}},
            "plain": {"validation": {"enable": True, "freq": 2, "steps": 2, "seq_len": 32, "local_batch_size": 2}},
            "every second": {"metrics": {"log_freq": 2}},
            "profiled": {"profiling": {"enable_profiling": True, "profile_freq": 4, "profiler_warmup": 1}},
            "float8": {
                "model": {"converters": ["quantize.linear.float8"]},
                "quantize": {"linear": {"float8": {"emulate": True}}},
            },
            "no float8": {"model": {"converters": ["quantize.linear.float8"]}},
            "no flavor": {"model": {**LLAMA, "flavor": "debugmodl"}},
            "masks": {"model": {"name": "llama4", "flavor": "debugmodel_irope"}},
            "no field": {"model": {**LLAMA, "n_layer": 2}},
            "no model": {"model": {**LLAMA, "name": "lama"}},
            "no data": {"training": {"mock_data": False, "dataset": "c5"}},
            "context": {"parallelism": {"context_parallel_degree": 2}},
            "no weights": {"checkpoint": {"initial_load_path": "nowhere"}},
            **{name: case(name) for name in MODELS},
        },
    )


@pytest.fixture(scope="module")
def two(trained: Callable[..., Results], one: Results, seed: Path) -> Results:
    started = checkpoint(initial_load_path=f"{seed}/checkpoints/step-0")
    experts = checkpoint(initial_load_path=f"{seed}/experts/checkpoints/step-0")

    def split(**parallelism: Any) -> dict[str, Any]:
        return {**started, "parallelism": parallelism}

    return trained(
        2,
        {
            "sharded": started,
            "replicated": split(data_parallel_replicate_degree=2),
            "replicated, accumulated": {
                **split(data_parallel_replicate_degree=2),
                "training": {"local_batch_size": 2, "global_batch_size": 8},
            },
            "tensor": {**split(tensor_parallel_degree=2), **BATCH_OF_8},
            "pipeline": {**split(pipeline_parallel_degree=2), **BATCH_OF_8},
            "pipeline, accumulated": {
                **split(pipeline_parallel_degree=2, pipeline_parallel_microbatch_size=2),
                "training": {"local_batch_size": 4, "global_batch_size": 8},
            },
            "interleaved": {
                **split(pipeline_parallel_degree=2, pipeline_parallel_schedule="Interleaved1F1B"),
                **BATCH_OF_8,
            },
            "v-shaped": {
                **split(pipeline_parallel_degree=2, pipeline_parallel_schedule="ZBVZeroBubble"),
                **BATCH_OF_8,
            },
            "experts": {**case("qwen3_moe"), **experts, "parallelism": {"expert_parallel_degree": 2}},
            "drawn, sharded": {"training": {"local_batch_size": 2}},
            "drawn, tensor": {"parallelism": {"tensor_parallel_degree": 2}},
            "drawn, experts": {
                **case("qwen3_moe", training={"steps": 1, "local_batch_size": 1}),
                "parallelism": {"expert_parallel_degree": 2},
            },
            **{name: case(name) for name in MODELS if name != "qwen3_moe"},
        },
    )


def curve(result: dict[str, Any], key: str = "loss") -> list[float]:
    assert "error" not in result
    return [step[key] for step in result["steps"]]


@pytest.mark.parametrize("name", MODELS)
def test_models_train_on_one_rank(one: Results, name: str) -> None:
    losses = curve(one[name])
    assert len(losses) == 3 and all(map(math.isfinite, losses + curve(one[name], "grad_norm")))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "qwen3_moe"])
def test_models_train_sharded(two: Results, name: str) -> None:
    losses = curve(two[name])
    assert len(losses) == 3 and all(map(math.isfinite, losses + curve(two[name], "grad_norm")))


SPLITS = (
    *("sharded", "replicated", "replicated, accumulated", "tensor", "pipeline", "pipeline, accumulated"),
    *("interleaved", "v-shaped"),
)


@pytest.mark.parametrize("name", SPLITS)
def test_losses_and_gradients_do_not_depend_on_how_a_model_is_split(one: Results, two: Results, name: str) -> None:
    assert curve(two[name]) == pytest.approx(curve(one["started"]), rel=1e-5)
    assert curve(two[name], "grad_norm") == pytest.approx(curve(one["started"], "grad_norm"), rel=1e-3)


def test_experts_split_over_ranks_have_the_same_gradients(one: Results, two: Results) -> None:
    assert curve(two["experts"]) == pytest.approx(curve(one["experts"]), rel=1e-3)  # grouped products in bfloat16
    assert curve(two["experts"], "grad_norm") == pytest.approx(curve(one["experts"], "grad_norm"), rel=1e-2)


@pytest.mark.parametrize("name", ["sharded", "tensor"])
def test_a_seed_gives_the_same_weights_however_a_model_is_split(one: Results, two: Results, name: str) -> None:
    assert curve(two[f"drawn, {name}"]) == pytest.approx(curve(one["plain"]), rel=1e-5)


def test_a_seed_gives_the_same_experts_however_they_are_spread(one: Results, two: Results) -> None:
    assert curve(two["drawn, experts"]) == pytest.approx(curve(one["qwen3_moe"])[:1], rel=1e-3)


def test_accumulation_and_recomputation_change_nothing(one: Results) -> None:
    assert curve(one["accumulated"]) == pytest.approx(curve(one["started"]), rel=1e-6)
    assert curve(one["recomputed"]) == curve(one["selective"]) == curve(one["plain"])


def test_metrics(one: Results) -> None:
    first, *_, last = one["plain"]["steps"]
    assert first["tokens"] == 4 * 32 and last["tokens"] == 4 * 4 * 32
    assert first["tokens_per_s"] == first["tokens_per_s_per_device"] > 0
    assert first["step_time"] == pytest.approx(4 * 32 / first["tokens_per_s"])
    assert first["mfu"] is None and first["memory"] > 1e8 and first["lr"] == pytest.approx(4e-4)
    assert one["plain"]["expect"] == [4, 0]
    assert [step["step"] for step in one["every second"]["steps"]] == [1, 2, 4]
    assert {"load", "data", "forward"} <= set(one["plain"]["phases"])


def test_validation_takes_the_same_samples_each_time(one: Results) -> None:
    evals = one["plain"]["evals"]
    assert [each["step"] for each in evals] == [1, 2, 4] and len({each["loss"] for each in evals}) == 3
    assert curve(one["plain"]) == curve(one["recomputed"])


def test_float8_is_emulated_where_asked_for(one: Results) -> None:
    assert curve(one["float8"]) != curve(one["plain"])
    assert curve(one["float8"]) == pytest.approx(curve(one["plain"]), rel=0.02)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no float8", "quantize.linear.float8.emulate: true"),
        ("no flavor", "did you mean 'debugmodel'"),
        ("masks", "take debugmodel"),
        ("no field", "model.n_layer: TransformerModelArgs has no such field; did you mean 'n_layers'"),
        ("no model", "torchtitan has no model 'lama'"),
        ("no data", "there is no 'c5'; there are text, tokens, c4"),
        ("context", "context parallelism has no attention for the CPU"),
        ("no weights", "checkpoint.initial_load_path: nowhere: no such folder"),
    ],
)
def test_what_cannot_be_is_said_in_words(one: Results, name: str, words: str) -> None:
    assert words in one[name]["error"]
