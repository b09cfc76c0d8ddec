"""Checkpoints to Hugging Face's format and back, against the models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from primus_core.convert.order import Order, Report
from primus_core.errors import UserError
from primus_torchtitan.convert import convert, find

ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
FIELDS = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 256}
QWEN = {"name": "qwen3", "flavor": "debugmodel", "head_dim": 16, "hidden_dim": 96, "enable_weight_tying": True}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama3": (
        {"model_type": "llama", "intermediate_size": 192, "rms_norm_eps": 1e-5, "rope_parameters": ROPE},
        {"name": "llama3", "flavor": "debugmodel", "multiple_of": 32, "rope_theta": 10000, "max_seq_len": 4096},
    ),
    "qwen3": (
        {
            "model_type": "qwen3",
            "intermediate_size": 96,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        QWEN,
    ),
}
"""The configuration of Hugging Face's model, and the same in the engine's."""
TOKENS = torch.arange(24).reshape(1, 24) * 7 % 256


def parameters(name: str) -> dict[str, Any]:
    return {"model": FIELDS | MODELS[name][1], "training": {"seq_len": 32}}


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        torch.manual_seed(0)
        values = dict(MODELS[name][0])
        built = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **SMALL | values))
        for parameter in built.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        built.save_pretrained(tmp_path / "source")
        return tmp_path / "source"

    return make


def run(source: Path, to: str, output: Path, config: dict[str, Any] | None) -> Report:
    output.mkdir()
    return convert(Order(source=source, format=to, output=output, backend="torchtitan", config=config))


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder)(TOKENS).logits
    return result


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_again(name: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    source, config = model(name), parameters(name)
    assert run(source, "torchtitan", tmp_path / "titan", config).complete
    found = find(tmp_path / "titan")
    assert found == tmp_path / "titan" / "step-0"
    assert run(found, "hf", tmp_path / "back", config).complete
    left, right = load_file(source / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert torch.equal(logits(source), logits(tmp_path / "back"))


@pytest.mark.parametrize("name", MODELS)
def test_the_engines_logits(name: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    from torch.distributed import checkpoint
    from torchtitan.protocols.train_spec import get_train_spec

    from primus_torchtitan.v02.spec import with_fields

    source, config = model(name), parameters(name)
    run(source, "torchtitan", tmp_path / "titan", config)
    spec = get_train_spec(config["model"]["name"])
    fields = {key: value for key, value in config["model"].items() if key not in ("name", "flavor")}
    built = spec.model_cls(with_fields(spec.model_args["debugmodel"], fields))
    with torch.no_grad():
        built.init_weights()
    state = built.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path / "titan" / "step-0", no_dist=True)
    with torch.no_grad():
        assert (built(TOKENS) - logits(source)).abs().max() < 1e-4


def test_what_does_not_fit(model: Callable[[str], Path], tmp_path: Path) -> None:
    source, config = model("llama3"), parameters("llama3")
    with pytest.raises(UserError, match="name its experiment"):
        run(source, "torchtitan", tmp_path / "a", None)
    config["model"]["vocab_size"] = 512
    report = run(source, "torchtitan", tmp_path / "b", config)
    assert report.mismatched == [
        "model.embed_tokens.weight: [256, 64], expected [512, 64]",
        "lm_head.weight: [256, 64], expected [512, 64]",
    ]
    content = load_file(source / "model.safetensors")
    content["model.layers.2.mlp.up_proj.weight"] = content.pop("model.layers.0.mlp.up_proj.weight")
    save_file(content, source / "model.safetensors")
    report = run(source, "torchtitan", tmp_path / "c", parameters("llama3"))
    assert report.summary == "1 missing, 1 extra, 0 shape mismatches"
    assert [*(tmp_path / "c").iterdir()] == []


def test_a_damaged_checkpoint(model: Callable[[str], Path], tmp_path: Path) -> None:
    source, config = model("llama3"), parameters("llama3")
    run(source, "torchtitan", tmp_path / "titan", config)
    file = tmp_path / "titan" / "step-0" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UserError, match="is damaged"):
        run(tmp_path / "titan" / "step-0", "hf", tmp_path / "back", config)
