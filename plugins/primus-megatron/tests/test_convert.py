"""Checkpoints to Hugging Face's format and back, against the models of transformers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from primus_core import elsewhere
from primus_core.convert.order import Forward, Order, Report
from primus_core.errors import PrimusError, UserError
from primus_megatron import checkpoints
from primus_megatron.convert.convert import convert
from primus_megatron.convert.hybrid import config_of

SMALL = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama3.2": {
        "model_type": "llama",
        "rope_parameters": LLAMA3_ROPE,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    },
    "llama-no-groups": {"model_type": "llama", "num_key_value_heads": 4},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, **MIXTURE},
    "qwen3_moe-softmax-first": {"model_type": "qwen3_moe", "norm_topk_prob": False, "mlp_only_layers": [0], **MIXTURE},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT},
}
TOKENS = torch.randint(500, (2, 24), generator=torch.Generator().manual_seed(1))

type Make = Callable[..., Path]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The folder of a tiny random model, none of whose tensors has a value that initialisation would give it."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = folder = tmp_path_factory.mktemp("hf") / name
            torch.manual_seed(0)
            values = dict(MODELS[name])
            built = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **SMALL | values))
            for parameter in [*built.parameters(), *(b for n, b in built.named_buffers() if "correction_bias" in n)]:
                parameter.data += 0.1 * torch.randn_like(parameter)
            built.save_pretrained(folder)
        return made[name]

    return make


def run(source: Path, to: str, output: Path, **given: Any) -> Report:
    output.mkdir()
    return convert(Order(source=source, format=to, output=output, backend="megatron", **given))


def both(source: Path, folder: Path, **given: Any) -> tuple[Path, Path]:
    """In Megatron's format, and back."""
    for found, to in ((source, "megatron"), (folder / "megatron", "hf")):
        found = checkpoints.find(found) or found
        report = run(found, to, folder / to, **given)
        assert report.summary == "0 missing, 0 extra, 0 shape mismatches"
    return folder / "megatron", folder / "hf"


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def assert_equal(one: Path, other: Path) -> None:
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_again(name: str, model: Make, tmp_path: Path) -> None:
    _, back = both(model(name), tmp_path)
    assert_equal(model(name), back)
    loaded, info = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, hf_logits(model(name)))


def hf_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(TOKENS).logits  # type: ignore[no-any-return]


def parameters(folder: Path) -> dict[str, Any]:
    values = yaml.safe_load((folder / "model.yaml").read_text())
    del values["extends"]
    return values


LOADED = {
    "finetune": True,
    "train_iters": 1,
    "seq_length": 24,
    "mock_data": True,
    "moe_token_dispatcher_type": "alltoall",
}


@pytest.mark.slow
def test_megatrons_logits(model: Make, trained: Callable[..., Any], tmp_path: Path) -> None:
    cases = {}
    for name in MODELS:
        (tmp_path / name).mkdir()
        folder, _ = both(model(name), tmp_path / name)
        cases[name] = parameters(folder) | LOADED | {"load": str(folder), "tokens": TOKENS.tolist()}
    heard = trained(1, cases)
    worst = {
        name: (torch.tensor(heard[name]["logits"])[..., :500] - hf_logits(model(name))).abs().max().item()
        for name in MODELS
    }
    assert max(worst.values()) < 1e-4, worst


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3.2", "deepseek_v3"])
def test_logits_of_a_checkpoint_for_verify(name: str, model: Make, tmp_path: Path) -> None:
    folder, _ = both(model(name), tmp_path)
    saved = checkpoints.find(folder)
    assert saved is not None
    order = Forward(source=saved, tokens=TOKENS.tolist(), output=tmp_path / "logits.safetensors")
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    elsewhere.call("primus_megatron.convert.logits:logits", order.text(), environ, who="the engine")
    heard, expected = load_file(order.output)["logits"][..., :500], hf_logits(model(name))
    assert expected.abs().max() > 0.5
    assert (heard - expected).abs().max() < 1e-4
    shutil.rmtree(tmp_path / "megatron")
    with pytest.raises(PrimusError, match=r"\.metadata: No such file"):
        elsewhere.call("primus_megatron.convert.logits:logits", order.text(), environ, who="the engine")


HYBRID = {
    "num_attention_heads": 4,
    "group_query_attention": False,
    "num_query_groups": 1,
    "position_embedding_type": "none",
    "untie_embeddings_and_output_weights": False,
    "layernorm_epsilon": 1e-6,
    "mamba_head_dim": 16,
    "mamba_state_dim": 16,
    "mamba_num_groups": 2,
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
    "rotary_base": 500000,
    "rope_type": "yarn",
    "lr": 1e-2,
    "train_iters": 30,
    "save": "checkpoints",
    "save_interval": 30,
}
PATTERNS: dict[str, dict[str, Any]] = {
    "mamba 0.25": {"num_layers": 8, "hybrid_layer_pattern": "+-M-M-M-"},
    "mla 1.0": {"num_layers": 4, "hybrid_layer_pattern": "+-+-"},
    "mla 1.0, YaRN": {"num_layers": 4, "hybrid_layer_pattern": "+-+-", "rotary_scaling_factor": 4.0, "mscale": 0.7},
}


@pytest.mark.slow
def test_hybrids_are_what_was_trained(trained: Callable[..., Any], tmp_path: Path) -> None:
    tokens, cases = (TOKENS % 256).tolist(), {}
    for number, (name, values) in enumerate(PATTERNS.items()):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        cases[name] = HYBRID | values | {"folder": str(folder)}
        again = {"load": str(folder / "checkpoints"), "finetune": True, "train_iters": 1, "save": None}
        cases[f"{name} again"] = HYBRID | values | again | {"tokens": tokens}
    heard = trained(1, cases)
    for number, name in enumerate(PATTERNS):
        saved, output = checkpoints.find(tmp_path / f"run{number}"), tmp_path / f"hf{number}"
        assert saved is not None
        assert run(saved, "hf", output, shard_size=300_000).summary == "0 missing, 0 extra, 0 shape mismatches"
        loaded, info = AutoModelForCausalLM.from_pretrained(output, trust_remote_code=True, output_loading_info=True)
        assert not any(info.values()), info
        expected = torch.tensor(heard[f"{name} again"]["logits"])
        with torch.no_grad():
            found = loaded(torch.tensor(tokens)).logits
        assert expected.abs().max() > 1
        assert (found - expected).abs().max() < 1e-5, name


@pytest.mark.parametrize("pattern", ["M-*-", "MM--", "M-M"])
def test_hybrids_of_other_layers_are_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=f"hybrid_layer_pattern: {re.escape(pattern)} is not made of pairs"):
        config_of({"hybrid_layer_pattern": pattern, "hidden_size": 64, "vocab_size": 256})


STILL = {"lr": 1e-30, "min_lr": 1e-30, "save": "checkpoints", "save_interval": 1, "sequence_parallel": True}


@pytest.mark.slow
def test_a_checkpoint_of_parallel_ranks(model: Make, trained: Callable[..., Any], tmp_path: Path) -> None:
    ways = {
        "qwen2": {"tensor_model_parallel_size": 2},
        "llama3.2": {"pipeline_model_parallel_size": 2, "sequence_parallel": False},
        "qwen3_moe": {
            "expert_model_parallel_size": 2,
            "tensor_model_parallel_size": 2,
            "expert_tensor_parallel_size": 1,
        },
    }
    cases = {}
    for name, way in ways.items():
        (tmp_path / name).mkdir()
        folder, _ = both(model(name), tmp_path / name)
        placed = {"load": str(folder), "folder": str(tmp_path / f"run-{name}")}
        cases[name] = parameters(folder) | LOADED | STILL | way | placed
    trained(2, cases)
    for name in ways:
        saved = checkpoints.find(tmp_path / f"run-{name}")
        assert saved is not None
        assert run(saved, "hf", tmp_path / f"back-{name}").complete
        assert_equal(model(name), tmp_path / f"back-{name}")


# --- the files ----------------------------------------------------------------------------------------------------


def test_shards_with_an_index(model: Make, tmp_path: Path) -> None:
    _, back = both(model("mixtral"), tmp_path, shard_size=200_000)
    index = json.loads((back / "model.safetensors.index.json").read_text())
    files = sorted(back.glob("*.safetensors"))
    assert len(files) > 3
    for file in files:
        with safe_open(file, "pt") as opened:
            assert all(index["weight_map"][name] == file.name for name in opened.keys())  # noqa: SIM118
        assert file.stat().st_size < 210_000
    assert_equal(model("mixtral"), back)


def test_another_type(model: Make, tmp_path: Path) -> None:
    _, back = both(model("llama"), tmp_path, dtype="bfloat16")
    assert {tensor.dtype for tensor in tensors(back).values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(back).dtype == torch.bfloat16


# --- what does not fit --------------------------------------------------------------------------------------------


def changed(model: Make, folder: Path, name: str = "llama", config: dict[str, Any] | None = None) -> Path:
    """A copy of a model, with some of its configuration changed."""
    folder.mkdir()
    save_file(tensors(model(name)), folder / "model.safetensors")
    values = json.loads((model(name) / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_tensors_that_do_not_fit(model: Make, tmp_path: Path) -> None:
    source = changed(model, tmp_path / "source")
    content = tensors(source)
    del content["model.norm.weight"]
    content["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    content["model.layers.1.mlp.up_proj.weight"] = torch.zeros(95, 64)
    save_file(content, source / "model.safetensors")
    report = run(source, "megatron", tmp_path / "out")
    assert report.summary == "1 missing, 1 extra, 1 shape mismatches"
    assert report.problems() == [
        ("missing", "model.norm.weight"),
        ("extra", "model.layers.0.self_attn.q_proj.bias"),
        ("shape", "model.layers.1.mlp.up_proj.weight: [95, 64], expected [96, 64]"),
    ]
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "lama"}, "no rules for model_type 'lama'; did you mean 'llama'?"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act: gelu is not SwiGLU's silu"),
        ({"rope_parameters": {**LLAMA3_ROPE, "original_max_position_embeddings": 64}}, "the engine has"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling of type 'linear'"),
        ({"model_type": "mixtral", "sliding_window": 64}, "sliding_window: 64 is less than the context"),
        ({"quantization_config": {"bits": 4}}, "the weights are quantized"),
    ],
)
def test_models_that_cannot_be_expressed(config: dict[str, Any], said: str, model: Make, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        run(changed(model, tmp_path / "source", config=config), "megatron", tmp_path / "out")


def test_an_experiment_of_another_model(model: Make, tmp_path: Path) -> None:
    folder, _ = both(model("llama"), tmp_path)
    config = parameters(folder)
    origins = {"num_layers": "x.yaml:7:9"}
    run(model("llama"), "megatron", tmp_path / "good", config=config, origins=origins)
    with pytest.raises(UserError) as caught:
        run(
            model("llama"),
            "megatron",
            tmp_path / "bad",
            config=config | {"num_layers": 4, "qk_layernorm": True},
            origins=origins,
        )
    assert str(caught.value).splitlines() == [
        "x.yaml:7:9: num_layers is 4, the checkpoint's 2",
        "qk_layernorm is True, the checkpoint's False",
    ]


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_a_damaged_checkpoint(file: str, model: Make, tmp_path: Path) -> None:
    folder, _ = both(model("llama"), tmp_path)
    damaged = folder / "release" / file
    damaged.write_bytes(damaged.read_bytes()[:2000])
    with pytest.raises(UserError, match="is damaged"):
        run(folder / "release", "hf", tmp_path / "again")


def test_a_checkpoint_that_would_run_code(model: Make, tmp_path: Path) -> None:
    folder, _ = both(model("llama"), tmp_path)
    (folder / "release" / ".metadata").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(UserError, match=r"holds more than data: os\.system has no place there"):
        run(folder / "release", "hf", tmp_path / "again")
