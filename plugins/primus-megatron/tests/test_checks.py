"""Values that do not fit together are told before a launch, with their place and what would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from primus_core.data.head import HEADER, MAGIC
from primus_core.plugins.records import Device

type Problems = Callable[..., list[str]]

MOCK = "mock_data: true\nlr_warmup_iters: 1\n"
NO_TE = {"installed": {"megatron-core": "0.19.2"}}
TE = {"installed": {"megatron-core": "0.19.2", "transformer-engine": "2.9.0"}}


def empty_tokens(folder: Path) -> None:
    (folder / "tokens.bin").touch()
    (folder / "tokens.idx").write_bytes(HEADER.pack(MAGIC, 1, 8, 0, 0))


def sm(version: int) -> dict[str, object]:
    return {"platform": "cuda", "devices": (Device(name="GPU", arch=f"sm_{version}"),)}


def test_nothing_is_wrong_with_a_preset_on_mock_data(problems: Problems) -> None:
    assert problems(MOCK, world_size=8, platform="cuda", **NO_TE) == []


SIZES = [
    (8, "tensor_model_parallel_size: 3", "tensor_model_parallel_size: 8 workers do not divide by"),
    (8, "tensor_model_parallel_size: 3", "tensor_model_parallel_size: 32 attention heads do not divide by 3"),
    (4, "pipeline_model_parallel_size: 8", "pipeline_model_parallel_size: 4 workers do not divide by"),
    (16, "pipeline_model_parallel_size: 16\nnum_layers: 40", "40 layers do not divide by 16"),
    (8, "expert_model_parallel_size: 8", "expert_model_parallel_size: 8 needs experts"),
    (
        4,
        "expert_model_parallel_size: 8\nnum_experts: 8",
        "4 workers do not divide by expert tensor x expert x pipeline",
    ),
    (8, "expert_model_parallel_size: 8\nnum_experts: 12", "12 experts do not divide by 8"),
    (8, "num_experts: 8\nmoe_router_topk: 9", "moe_router_topk: 9 experts of a token are more than num_experts = 8"),
    (8, "num_experts: 8\nmoe_router_num_groups: 3", "moe_router_num_groups: 8 experts do not divide by 3"),
    (8, "global_batch_size: 12\nmicro_batch_size: 2", "2 x 8; 16 would"),
    (8, "global_batch_size: 40\nmicro_batch_size: 2", "2 x 8; 32 or 48 would"),
    (8, "num_query_groups: 5", "num_query_groups: 32 attention heads do not divide by 5"),
    (8, "tensor_model_parallel_size: 8\nnum_query_groups: 16\nffn_hidden_size: 14340", "ffn_hidden_size = 14340"),
    (8, "hidden_size: 4100", "hidden_size: 4100 does not divide by num_attention_heads = 32"),
    (8, "seq_length: 8192\nmax_position_embeddings: 4096", "seq_length: 8192 is more than max_position_embeddings"),
    (8, "tensor_model_parallel_size: 8\nseq_length: 1020", "seq_length: 1020 does not divide by tensor"),
    (8, "num_virtual_stages_per_pipeline_rank: 2", "needs pipeline_model_parallel_size > 1"),
    (
        8,
        "pipeline_model_parallel_size: 2\nnum_virtual_stages_per_pipeline_rank: 2\nglobal_batch_size: 24",
        "3 micro batches a step do not divide by pipeline_model_parallel_size = 2",
    ),
    (
        8,
        "num_virtual_stages_per_pipeline_rank: 2\npipeline_model_parallel_layout: Et|tL",
        "pipeline_model_parallel_layout",
    ),
    (1, "num_layers: -4", "num_layers: must be at least 1, not -4"),
    (1, "micro_batch_size: 0", "micro_batch_size: must be at least 1, not 0"),
    (1, "log_interval: 0", "log_interval: must be at least 1, not 0"),
    (1, "eval_interval: 0", "eval_interval: must be at least 1, not 0"),
    (1, "eval_iters: -1", "eval_iters: must be at least 0, not -1"),
    (1, "hidden_dropout: 1.5", "hidden_dropout: must be at least 0 and less than 1, not 1.5"),
    (1, "tensor_model_parallel_size: 0", "tensor_model_parallel_size: must be at least 1, not 0"),
    (8, "overlap_param_gather: true", "overlap_param_gather: needs overlap_grad_reduce"),
    (8, "lr_warmup_iters: 50\ntrain_iters: 20", "lr_warmup_iters: 50 is not less than train_iters = 20"),
    (8, "min_lr: 1", "min_lr: 1.0 is more than lr"),
    (8, "recompute_granularity: full", "full needs recompute_method"),
    (8, "recompute_granularity: full\nrecompute_method: block", "block needs recompute_num_layers"),
    (8, "fp16: true", "fp16: bf16 is true as well"),
    (8, "final_logit_softcapping: 30.0", "capped logits are not part of megatron-core"),
    (8, "perform_rl_step: true", "reinforcement learning"),
]


@pytest.mark.parametrize(("workers", "overrides", "message"), SIZES, ids=[message for *_, message in SIZES])
def test_values_that_do_not_fit_together(problems: Problems, workers: int, overrides: str, message: str) -> None:
    found = problems(f"mock_data: true\n{overrides}", world_size=workers)
    assert any(message in line for line in found), found
    assert all(line.startswith("x.yaml:") for line in found if message in line)


def test_the_place_is_that_of_the_value_that_is_best_changed(problems: Problems) -> None:
    found = problems(MOCK + "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 4", world_size=6)
    assert found == [
        "x.yaml:9:37: pipeline_model_parallel_size: 6 workers do not divide by "
        "tensor x pipeline x context parallel size = 2 x 4 x 1"
    ]


def test_everything_wrong_is_told_at_once(problems: Problems) -> None:
    found = problems("mock_data: true\nlr_warmup_iters: 5000\nmin_lr: 1\nnum_query_groups: 5\nfp16: true", world_size=8)
    assert [line.split(": ")[1] for line in found] == ["lr_warmup_iters", "min_lr", "num_query_groups", "fp16"]


def test_an_unknown_place_is_not_checked(problems: Problems) -> None:
    assert problems(MOCK + "global_batch_size: 7\ntensor_model_parallel_size: 2\nfp8: hybrid") == []


def test_sequence_parallelism_of_the_presets_is_quiet_without_tensor_parallelism(problems: Problems) -> None:
    assert problems(MOCK + "seq_length: 1021", world_size=1) == []


# --- data ---------------------------------------------------------------------------------------------------------


def test_no_data_names_both_remedies(problems: Problems) -> None:
    (found,) = problems("lr_warmup_iters: 1")
    assert "primus data prepare" in found and "mock_data: true" in found


def test_data_and_mock_data_exclude_each_other(problems: Problems) -> None:
    (found,) = problems(MOCK + "train_data_path: tokens")
    assert found.startswith("x.yaml:8:24: train_data_path: cannot be combined with mock_data: true")


@pytest.mark.parametrize("value", ["tokens", "[tokens]", "0.3 tokens 0.7 tokens", '["1", tokens]'])
def test_missing_files_are_named_where_the_run_will_be(problems: Problems, tmp_path: Path, value: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    overrides = f"train_data_path: {value}\ntokenizer_model: tokenizer.json\nlr_warmup_iters: 1"
    assert problems(overrides) == []
    found = problems(overrides, platform="cpu")
    assert found and all("there is no file tokens.bin and tokens.idx" in line for line in found)
    empty_tokens(tmp_path)
    assert problems(overrides, platform="cpu") == []


def test_a_data_path_with_its_ending(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").touch()
    found = problems("train_data_path: tokens.bin\ntokenizer_type: NullTokenizer\nvocab_size: 9", platform="cpu")
    assert "write it without its ending" in found[0]


def test_tokenizers(problems: Problems, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    empty_tokens(tmp_path)
    data = "train_data_path: tokens\nlr_warmup_iters: 1\n"
    (found,) = problems(data, platform="cpu")
    assert "meta-llama/Llama-3.1-8B will be fetched from the hub" in found
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (found,) = problems(data, platform="cpu")
    assert "HF_HUB_OFFLINE is set; tokenizer_model takes the folder of a local one too" in found
    (tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B").mkdir(parents=True)
    assert problems(data, platform="cpu") == []
    (found,) = problems(data + "tokenizer_model: ./nowhere", platform="cpu")
    assert found.startswith("x.yaml:8:24: tokenizer_model: there is no ./nowhere")
    (found,) = problems(data + "tokenizer_type: NullTokenizer", platform="cpu")
    assert "NullTokenizer needs vocab_size" in found


# --- features -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "place", "message"),
    [
        ("fp8: hybrid", NO_TE, "fp8: needs Transformer Engine (pip install primus-megatron[te])"),
        ("fp8: hybrid", TE | {"platform": "cpu"}, "there is no GPU here"),
        ("fp8: hybrid", TE | sm(80), "sm_80 cannot compute in FP8"),
        ("fp4: e2m1", TE | sm(90), "sm_90 cannot compute in FP4"),
        ("fp4: e2m1\nfp4_recipe: mxfp4", TE | sm(100), "MXFP4 is not part of megatron-core"),
        ("context_parallel_size: 2", NO_TE, "context_parallel_size: needs Transformer Engine"),
    ],
)
def test_precision_and_mathematics_are_refused(
    problems: Problems, overrides: str, place: dict[str, object], message: str
) -> None:
    (found,) = problems(MOCK + overrides, **place)
    assert message in found and found.startswith("x.yaml:")


def test_what_the_place_can_do_is_quiet(problems: Problems) -> None:
    assert problems(MOCK + "fp8: hybrid\ncross_entropy_fusion_impl: te", **TE, **sm(90)) == []


def test_options_for_speed_fall_back_with_a_notice_where_a_user_wrote_them(problems: Problems) -> None:
    (found,) = problems(MOCK + "cross_entropy_fusion_impl: te", **NO_TE)
    place, key, message = found.split(": ", 2)
    assert (place, key) == ("x.yaml:8:34", "cross_entropy_fusion_impl")
    assert message == "Transformer Engine is not installed: the engine's own fused loss is used"


def test_keys_of_primus_turbo_say_that_they_do_nothing(problems: Problems) -> None:
    (found,) = problems(MOCK + "use_turbo_attention: true")
    assert found.startswith("x.yaml:8:7: 'use_turbo_attention' does nothing here: Primus-Turbo's kernels are not used")
    assert problems(MOCK + "use_turbo_attention: false") == []
