"""Values that do not fit together are told before a launch, with their place and what would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from primus_core.data.head import HEADER, MAGIC
from primus_core.plugins.records import Device

type Problems = Callable[..., list[str]]

HEAD = "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: {}.yaml\n    overrides:\n"
TORCHAO = {"installed": {"torchtitan": "0.2.2", "torchao": "0.18.0"}}
NO_TORCHAO = {"installed": {"torchtitan": "0.2.2"}}


def sm(version: int) -> dict[str, object]:
    return {"platform": "cuda", "devices": (Device(name="GPU", arch=f"sm_{version}"),)}


def test_nothing_is_wrong_with_a_preset(problems: Problems) -> None:
    assert problems("compile: {enable: true}", world_size=8, platform="cuda", **NO_TORCHAO) == []


# --- models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{flavor: 8b}", "x.yaml:6:23: model.flavor: llama3 has no '8b'; did you mean '8B'?"),
        ("{flavor: 1B}", "model.flavor: llama3 has no '1B'; the preset llama3.2_1B does: `model: llama3.2_1B.yaml`"),
        ("{name: lama3}", "model.name: there is no 'lama3'; did you mean 'llama3'?"),
        ("{name: flux}", "model.name: there is no 'flux'; there are deepseek_v3, gpt_oss, llama3, llama4, qwen3"),
        (
            "{head_dim: 64}",
            "x.yaml:6:15: model.head_dim: llama3 has no such field; there are attn_mask_type, attn_type,",
        ),
        ("{moe_args: {top_k: 2}}", "x.yaml:6:26: model.moe_args.top_k: llama3 has no such field"),
    ],
)
def test_a_model_that_is_not_there(problems: Problems, model: str, message: str) -> None:
    (found,) = problems(f"model: {model}")
    assert message in found


def test_fields_of_a_flavor_are_typed_by_the_schema(problems: Problems) -> None:
    assert problems("model: {n_layers: 2, rope_scaling_args: {scaling_factor: 1}}") == []
    (found,) = problems("model: {dimm: 2}")
    assert found == "x.yaml:6:15: unknown key 'model.dimm'; did you mean 'model.dim'?"
    (found,) = problems("model: {dim: 2.5}")
    assert "expected a whole number" in found


def test_a_model_of_a_plugin_has_its_own_flavor_and_size(problems: Problems) -> None:
    head = HEAD.format("llama3.2_1B")
    assert problems("training: {steps: 3}", head=head, world_size=8) == []
    (found,) = problems("model: {flavor: 8B}", head=head)
    assert "the model llama3.2_1B is llama3 '1B', not '8B'" in found
    (found,) = problems("parallelism: {pipeline_parallel_degree: 2}", head=head, world_size=2)
    assert "one matrix for embedding and output cannot lie in two stages" in found


def test_models_of_other_plugins_and_imports_are_left_alone(problems: Problems) -> None:
    assert problems("model: {name: mine, flavor: small}\nexperimental: {custom_import: mine}", world_size=8) == []


# --- sizes --------------------------------------------------------------------------------------------------------

SIZES = [
    (8, "tensor_parallel_degree: 3", "8 workers do not divide by replicate x context x tensor x pipeline degree ="),
    (
        8,
        "data_parallel_shard_degree: 3",
        "= 1 x 3 x 1 x 1 x 1 is not the 8 workers that there are; -1 takes what is left",
    ),
    (2, "tensor_parallel_degree: 4", "tensor_parallel_degree: 2 workers do not divide"),
    (3, "tensor_parallel_degree: 3", "tensor_parallel_degree: 32 attention heads do not divide by 3"),
    (16, "tensor_parallel_degree: 16", "tensor_parallel_degree: 8 heads of keys and values do not divide by 16"),
    (8, "tensor_parallel_degree: 0", "tensor_parallel_degree: 0 is less than 1"),
    (8, "data_parallel_shard_degree: 0", "data_parallel_shard_degree: 0 is neither at least 1 nor -1"),
    (8, "expert_parallel_degree: 8", "expert_parallel_degree: 8 needs experts; llama3 8B has none"),
    (
        64,
        "pipeline_parallel_degree: 64",
        "32 layers, counted as 34 with embedding and output, are too few for 64 stages",
    ),
    (2, "{pipeline_parallel_degree: 2, pipeline_parallel_schedule: zbv}", "there is no 'zbv'"),
    (
        2,
        "{pipeline_parallel_degree: 2, pipeline_parallel_layers_per_stage: 5}",
        "make 7 stages; 1F1B wants 1 stage a rank",
    ),
    (
        2,
        "{pipeline_parallel_degree: 2, pipeline_parallel_microbatch_size: 3}",
        "8 does not divide by micro batches of 3",
    ),
    (
        8,
        "{data_parallel_replicate_degree: 4, tensor_parallel_degree: 2}",
        "replicas that are not sharded exclude tensor",
    ),
    (2, "{tensor_parallel_degree: 2, enable_async_tensor_parallel: true}", ""),
]


@pytest.mark.parametrize(("workers", "value", "message"), SIZES)
def test_degrees_that_do_not_fit(problems: Problems, workers: int, value: str, message: str) -> None:
    value = value if value.startswith("{") else f"{{{value}}}"
    found = problems(f"parallelism: {value}", world_size=workers)
    if not message:
        assert found == []
        return
    assert any(message in line for line in found), found
    assert all(line.startswith(("x.yaml:6:", "torchtitan/")) for line in found)


MOE = [
    (8, "expert_parallel_degree: 3", "64 experts do not divide by 3"),
    (8, "{expert_parallel_degree: 16}", "shard x context x tensor degree = 8 x 1 x 1 does not divide by"),
    (
        8,
        "{expert_parallel_degree: 2, tensor_parallel_degree: 4, expert_tensor_parallel_degree: 2}",
        "2 is neither 1 nor",
    ),
]


@pytest.mark.parametrize(("workers", "value", "message"), MOE)
def test_experts(problems: Problems, workers: int, value: str, message: str) -> None:
    value = value if value.startswith("{") else f"{{{value}}}"
    found = problems(f"parallelism: {value}", head=HEAD.format("deepseek_v3_16b"), world_size=workers)
    assert any(message in line for line in found), found


def test_a_token_finds_enough_experts(problems: Problems) -> None:
    (found,) = problems("model: {moe_args: {num_experts: 4}}", head=HEAD.format("deepseek_v3_16b"))
    assert found == "x.yaml:6:39: model.moe_args.num_experts: 6 experts of a token are more than 4"


def test_batches_and_sequences(problems: Problems) -> None:
    (found,) = problems("training: {global_batch_size: 100, local_batch_size: 6}", world_size=8)
    assert found.endswith("100 does not divide by local_batch_size x data-parallel ranks = 6 x 8; 96 or 144 would")
    assert found.startswith("x.yaml:6:37: training.global_batch_size:")
    (found,) = problems("training: {seq_len: 1001}\nparallelism: {tensor_parallel_degree: 2}", world_size=2)
    assert found.startswith("x.yaml:6:27: training.seq_len: sequences of 1001 do not divide by 2 x context x tensor")


def test_everything_wrong_is_told_at_once(problems: Problems) -> None:
    found = problems(
        "model: {n_heads: 5}\noptimizer: {name: Muon}\n"
        "activation_checkpoint: {mode: selective, selective_ac_option: all}\n"
        "lr_scheduler: {decay_ratio: 2}\ncheckpoint: {keep_latest_k: 1}",
        world_size=8,
    )
    assert [line.split(": ")[1] for line in found] == [
        "model.n_heads",
        "model.n_heads",
        "optimizer.name",
        "activation_checkpoint.selective_ac_option",
        "lr_scheduler.decay_ratio",
        "checkpoint.keep_latest_k",
    ]


def test_an_unknown_place_is_not_checked(problems: Problems) -> None:
    assert problems("parallelism: {tensor_parallel_degree: 2}\ntraining: {global_batch_size: 7}") == []


# --- features -----------------------------------------------------------------------------------------------------

FLOAT8 = "model: {converters: [quantize.linear.float8]}\ncompile: {enable: false}\n"


@pytest.mark.parametrize(
    ("overrides", "place", "message"),
    [
        (FLOAT8, NO_TORCHAO | sm(90), "torchao is not installed (pip install primus-torchtitan[float8]); without"),
        (
            FLOAT8,
            TORCHAO | {"platform": "cpu"},
            "there is no GPU here; quantize.linear.float8.emulate: true computes as if",
        ),
        (
            FLOAT8,
            TORCHAO | sm(80),
            "sm_80 cannot compute in FP8; without quantize.linear.float8 the model trains in BF16",
        ),
        ("model: {converters: [quantize.linear.fp8]}", {}, "there is no 'quantize.linear.fp8'; did you mean"),
        ("model: {converters: [quantize.linear.float8, quantize.linear.mx]}", {}, "float8 and mx cannot be combined"),
        ("parallelism: {context_parallel_degree: 2}", {"platform": "cpu"}, "the CPU has no attention for it"),
        ("model: {flavor: 8B_flex}\nparallelism: {context_parallel_degree: 2}", {}, "needs attn_type: sdpa, and that"),
        ("model: {flavor: 8B_varlen}", {"platform": "cpu"}, "varlen attention needs a GPU"),
        (
            "activation_checkpoint: {mode: memory_budget}\ncompile: {enable: false}",
            {},
            "memory_budget needs compile.enable",
        ),
        ("primus_turbo: {enable_attention_float8: true}", {}, "attention in float8 is Primus-Turbo's"),
    ],
)
def test_what_the_place_or_the_engine_cannot_do(
    problems: Problems, overrides: str, place: dict[str, object], message: str
) -> None:
    (found,) = problems(overrides, **place)
    assert message in found and found.startswith("x.yaml:")


def test_float8_where_it_can_be_had(problems: Problems) -> None:
    assert problems(FLOAT8, **TORCHAO, **sm(90)) == []
    assert problems(FLOAT8 + "quantize: {linear: {float8: {emulate: true}}}", **TORCHAO, platform="cpu") == []


def test_keys_of_primus_turbo_say_that_they_do_nothing(problems: Problems) -> None:
    (found,) = problems("primus_turbo: {use_turbo_attention: true}")
    assert "'primus_turbo.use_turbo_attention' does nothing here: Primus-Turbo's kernels are not used" in found
    assert problems("primus_turbo: {use_turbo_attention: false}") == []
    (found,) = problems("model: {converters: [primus_turbo]}")
    assert "primus_turbo does nothing here" in found


def test_kernels_that_must_be_there_are_a_requirement(problems: Problems, head: str) -> None:
    (found,) = problems("training: {steps: 3}", head="requires: [primus-turbo]\n" + head)
    assert found.startswith("x.yaml:1:12: requires: primus-turbo is not installed")


# --- data ---------------------------------------------------------------------------------------------------------

REAL = "training: {{mock_data: false, {}}}\nmodel: {{hf_assets_path: tok}}\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "dataset: c4_test",
            "c4_test is not part of torchtitan's wheel; training.dataset: text with training.dataset_path",
        ),
        ("dataset: mine", "there is no 'mine'; there are c4, c4_test, c4_validation, text, tokens"),
        ("dataset: text", "text needs training.dataset_path"),
        ("dataset: text, dataset_path: ./nowhere", "training.dataset_path: there is no ./nowhere"),
        ("dataset: text, dataset_path: nowhere/*.jsonl", "training.dataset_path: there is no nowhere/*.jsonl"),
        ("dataset: tokens, dataset_path: nowhere", "there is no file nowhere.bin and nowhere.idx"),
    ],
)
def test_data_that_is_not_there(problems: Problems, tmp_path: Path, data: str, message: str) -> None:
    (tmp_path / "tok").mkdir()
    (found,) = problems(REAL.format(data), platform="cpu")
    assert message in found


def test_data_that_is_there(problems: Problems, tmp_path: Path) -> None:
    for name in ("text.jsonl", "made.bin", "made.idx"):
        (tmp_path / name).touch()
    (tmp_path / "made.idx").write_bytes(HEADER.pack(MAGIC, 1, 8, 0, 0))
    (tmp_path / "tok").mkdir()
    for data in ("dataset: text, dataset_path: text.jsonl", "dataset: tokens, dataset_path: made", "dataset: c4"):
        assert problems(REAL.format(data), platform="cpu") == []
    (found,) = problems(REAL.format("dataset: c4").replace("tok", "./none"), platform="cpu")
    assert "model.hf_assets_path: there is no ./none" in found


def test_a_checkpoint_to_start_from(problems: Problems) -> None:
    (found,) = problems("checkpoint: {enable: true, initial_load_path: ./nowhere}", platform="cpu")
    assert found == "x.yaml:6:53: checkpoint.initial_load_path: there is no folder ./nowhere"


@pytest.mark.parametrize(
    ("checkpoint", "ranks", "message"),
    [
        ("enable: false, last_save_in_hf: true", 1, "last_save_in_hf: needs checkpoint.enable: true"),
        ("enable: false, initial_load_path: tok", 1, "initial_load_path: needs checkpoint.enable: true"),
        ("enable: true, last_save_in_hf: true, last_save_model_only: false", 1, "last_save_model_only: true"),
        ("enable: true, create_seed_checkpoint: true", 2, "is made by one worker, and there are 2"),
    ],
)
def test_checkpoints_that_contradict(problems: Problems, checkpoint: str, ranks: int, message: str) -> None:
    (found,) = problems(f"checkpoint: {{{checkpoint}}}", world_size=ranks)
    assert message in found
