"""Hybrid models in Hugging Face's format: their mixers against recurrences and transformers, generation, padding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from primus_megatron.hf import AUTO_MAP, CODE
from primus_megatron.kernels.delta_rule import delta_rule, l2norm

SMALL: dict[str, Any] = {
    "model_type": "zebra_llama",
    "auto_map": AUTO_MAP,
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_key_heads": 2,
    "num_value_heads": 4,
    "key_head_dim": 8,
    "value_head_dim": 12,
    "num_attention_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "mamba_inner_size": 64,
    "mamba_head_dim": 16,
    "mamba_state_size": 8,
    "mamba_groups": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
YARN = {"yarn_factor": 4.0, "yarn_original_context": 64, "yarn_mscale_all_dim": 0.7}
PATTERNS = {
    "mamba": {"mixer_types": ["mla", "mamba", "mamba", "mamba"]},
    "gdn": {"mixer_types": ["mla", "gdn", "gdn", "gdn"]},
    "kda": {"mixer_types": ["mla", "kda", "kda", "kda"], "num_key_heads": 4},
    "pure": {"mixer_types": ["gdn", "kda"], "num_key_heads": 4},
    "mla": {"mixer_types": ["mla", "mla"], **YARN},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A random model, made and loaded as a folder with code beside the weights."""
    root, made = tmp_path_factory.mktemp("hybrid"), dict[str, Any]()

    def make(name: str) -> Any:
        if name not in made:
            folder = root / name
            folder.mkdir()
            for file in CODE:
                shutil.copy(file, folder)
            (folder / "config.json").write_text(json.dumps(SMALL | PATTERNS[name]))
            torch.manual_seed(0)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
            AutoModelForCausalLM.from_config(config, trust_remote_code=True).save_pretrained(folder)
            loaded, info = AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=True, output_loading_info=True
            )
            assert not any(info.values()), info
            made[name] = loaded.eval()
        return made[name]

    return make


# --- the delta rule -----------------------------------------------------------------------------------------------


def naive(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token and head by head."""
    times = v.size(2) // q.size(2)
    o, last = torch.zeros_like(v), state.clone()
    for b in range(v.size(0)):
        for h in range(v.size(2)):
            s = last[b, h]
            for t in range(v.size(1)):
                s = s * g[b, t, h].exp().reshape(-1, 1)
                key = k[b, t, h // times]
                s = s + torch.outer(key, beta[b, t, h] * (v[b, t, h] - key @ s))
                o[b, t, h] = q[b, t, h // times] @ s / q.size(-1) ** 0.5
            last[b, h] = s
    return o, last


def inputs(tokens: int, channels: bool, strong: float = 1.0) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(tokens)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=make)

    decay = random(2, tokens, 4, 8) if channels else random(2, tokens, 4)
    q, k = (l2norm(random(2, tokens, 2, 8)) for _ in range(2))
    return [q, k, random(2, tokens, 4, 6), -strong * decay.exp(), random(2, tokens, 4).sigmoid(), random(2, 4, 8, 6)]


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("tokens", [1, 15, 32, 75])
def test_delta_rule_is_the_recurrence(tokens: int, channels: bool) -> None:
    given = inputs(tokens, channels)
    for one, other in zip(delta_rule(*given), naive(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [False, True])
def test_delta_rule_goes_on_from_a_state(channels: bool) -> None:
    *given, state = inputs(50, channels)
    whole, last = delta_rule(*given, state)
    first, state = delta_rule(*(x[:, :21] for x in given), state)
    second, state = delta_rule(*(x[:, 21:] for x in given), state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [False, True])
def test_strong_decay_stays_finite_with_its_gradients(channels: bool) -> None:
    given = [x.float().requires_grad_() for x in inputs(70, channels, strong=200.0)]
    o, state = delta_rule(*given)
    (o.sum() + state.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in given if x.grad is not None)
    assert torch.isfinite(o).all()


def test_delta_rule_is_that_of_transformers() -> None:
    *given, _ = (x.float() for x in inputs(75, channels=False))
    q, k, v, g, beta = given
    expected, _ = torch_chunk_gated_delta_rule(q.repeat_interleave(2, 2), k.repeat_interleave(2, 2), v, g, beta)
    torch.testing.assert_close(delta_rule(*given)[0], expected, rtol=1e-5, atol=1e-6)


# --- sizes --------------------------------------------------------------------------------------------------------

ONE_B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
}
MLA_1B = {"q_lora_rank": 1344, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
LARGE_MLA = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
LARGE_MAMBA = {"mamba_head_dim": 128, "mamba_state_size": 128, "mamba_groups": 8}
DELTA = {"key_head_dim": 64, "value_head_dim": 64}
KDA = {"key_head_dim": 32, "value_head_dim": 64}


def quarter(kind: str, blocks: int) -> list[str]:
    return ["mla" if block % 4 == 0 else kind for block in range(blocks)]


SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "1B_gdn_pure": (
        1_203_441_152,
        ONE_B | DELTA | {"mixer_types": ["gdn"] * 16, "num_key_heads": 8, "num_value_heads": 16},
    ),
    "1B_kda_pure": (
        1_175_153_920,
        ONE_B | KDA | {"mixer_types": ["kda"] * 16, "num_key_heads": 16, "num_value_heads": 16},
    ),
    "1B_kda": (
        1_190_062_784,
        ONE_B | MLA_1B | KDA | {"mixer_types": quarter("kda", 16), "num_key_heads": 16, "num_value_heads": 16},
    ),
    "1B": (
        1_286_886_272,
        ONE_B
        | MLA_1B
        | {"mixer_types": quarter("mamba", 16), "mamba_inner_size": 2048}
        | {"mamba_head_dim": 64, "mamba_state_size": 64, "mamba_groups": 8},
    ),
    "3B": (
        3_377_311_592,
        {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24}
        | {"q_lora_rank": 1536, "kv_lora_rank": 128, "mixer_types": quarter("mamba", 28), "mamba_inner_size": 3072}
        | LARGE_MLA
        | LARGE_MAMBA,
    ),
    "8B": (
        7_898_996_224,
        {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14436, "num_attention_heads": 32}
        | {"q_lora_rank": 2048, "kv_lora_rank": 160, "mixer_types": quarter("mamba", 32), "mamba_inner_size": 4096}
        | LARGE_MLA
        | LARGE_MAMBA,
    ),
}
"""Parameters of the published sizes, those of the pure ones counted on Flash Linear Attention's own models."""


@pytest.mark.parametrize("name", SIZES)
def test_parameters_of_published_sizes(name: str, model: Callable[[str], Any]) -> None:
    count, sizes = SIZES[name]
    small = model("mla")
    with torch.device("meta"):
        built = type(small)(type(small.config)(**sizes))
    assert sum(parameter.numel() for parameter in built.parameters()) == count


FLA_NAMES = {
    "gdn": "A_log dt_bias q_proj k_proj v_proj a_proj b_proj g_proj q_conv1d k_conv1d v_conv1d o_norm o_proj",
    "kda": "A_log dt_bias q_proj k_proj v_proj b_proj f_proj.0 f_proj.1 g_proj.0 g_proj.1 q_conv1d k_conv1d v_conv1d "
    "o_norm o_proj",
}


@pytest.mark.parametrize(("kind", "layer"), [("gdn", 0), ("kda", 1)])
def test_names_are_those_of_flash_linear_attention(kind: str, layer: int, model: Callable[[str], Any]) -> None:
    names = {name for name, _ in model("pure").model.layers[layer].attn.named_parameters()}
    expected = {each if each in ("A_log", "dt_bias") else f"{each}.weight" for each in FLA_NAMES[kind].split()}
    assert names == expected | ({"g_proj.1.bias"} if kind == "kda" else set())


# --- whole models -------------------------------------------------------------------------------------------------

TOKENS = torch.randint(97, (3, 41), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", PATTERNS)
@torch.no_grad()
def test_generation_with_a_cache_is_that_without(name: str, model: Callable[[str], Any]) -> None:
    network = model(name)
    ids = TOKENS
    for _ in range(9):
        ids = torch.cat([ids, network(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    generated = network.generate(TOKENS, max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, ids)


@pytest.mark.parametrize("name", PATTERNS)
@torch.no_grad()
def test_padding_changes_nothing(name: str, model: Callable[[str], Any]) -> None:
    network, padding = model(name), 13
    padded = torch.cat([torch.randint(97, (3, padding)), TOKENS], 1)
    mask = torch.cat([torch.zeros(3, padding), torch.ones_like(TOKENS)], 1).long()
    expected = network(TOKENS).logits
    torch.testing.assert_close(network(padded, attention_mask=mask).logits[:, padding:], expected, rtol=1e-4, atol=1e-5)
    right = torch.cat([TOKENS, padded[:, :padding]], 1)
    kept = network(right, attention_mask=mask.flip(1)).logits[:, : TOKENS.size(1)]
    torch.testing.assert_close(kept, expected, rtol=1e-4, atol=1e-5)
    given = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
    alone = network.generate(TOKENS, **given)[:, TOKENS.size(1) :]
    assert torch.equal(network.generate(padded, attention_mask=mask, **given)[:, padded.size(1) :], alone)


@torch.no_grad()
def test_memory_of_decoding_is_constant_without_attention(model: Callable[[str], Any]) -> None:
    def size(tokens: int) -> int:
        cache = model("pure")(TOKENS[:, :tokens], use_cache=True).cache
        return sum(tensor.numel() for state in cache.states for tensor in state.values())

    assert size(8) == size(41)


@torch.no_grad()
def test_beams_take_their_states_along(model: Callable[[str], Any]) -> None:
    given = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    cached = model("mamba").generate(TOKENS, **given)
    assert torch.equal(cached, model("mamba").generate(TOKENS, use_cache=False, **given))


def test_yarn_is_that_of_transformers(model: Callable[[str], Any]) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 500000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    }
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "qk_rope_head_dim": 8, "max_position_embeddings": 256}
    config = AutoConfig.for_model("deepseek_v3", **sizes, head_dim=8, rope_parameters=rope)
    expected = DeepseekV3RotaryEmbedding(config)
    rotary = model("mla").model.layers[0].attn.rotary
    torch.testing.assert_close(rotary.frequencies("cpu"), expected.inv_freq)
    assert rotary.mscale(1.0) / rotary.mscale(0.7) == pytest.approx(expected.attention_scaling)


def test_gradients_reach_every_weight(model: Callable[[str], Any]) -> None:
    for name in PATTERNS:
        network = model(name)
        network(TOKENS, labels=TOKENS).loss.backward()
        assert [key for key, each in network.named_parameters() if each.grad is None or not each.grad.any()] == []
        network.zero_grad()
