"""The configuration of Hugging Face's model and the arguments of Megatron's that say the same. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from primus_core.errors import UserError
from primus_megatron.convert.families import (
    DEEPSEEK_V3,
    FAMILIES,
    LLAMA,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    Family,
)

type Arguments = dict[str, Any]

_SAME: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "max_position_embeddings": ("max_position_embeddings",),
    "vocab_size": ("vocab_size",),
    "layernorm_epsilon": ("rms_norm_eps",),
    "init_method_std": ("initializer_range",),
}
_MIXTURE: Mapping[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "moe_router_topk": ("num_experts_per_tok",),
}
_LATENT: Mapping[str, tuple[str, ...]] = {
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_head_dim": ("qk_nope_head_dim",),
    "qk_pos_emb_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor",),
    "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",),
}
"""Megatron's argument, and the names of the same in Hugging Face's configurations."""

_BLOCK: Arguments = {
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
"""What all families have in common."""

_ABSENT: Arguments = {
    "layernorm_zero_centered_gamma": False,
    "apply_layernorm_1p": False,
    "rotary_seq_len_interpolation_factor": None,
    "qk_l2_norm": False,
    "window_size": None,
    "softmax_type": "vanilla",
    "attention_output_gate": False,
    "mtp_num_layers": None,
    "moe_shared_expert_gate": False,
    "moe_latent_size": None,
    "experimental_attention_variant": None,
    "hybrid_layer_pattern": None,
    "heterogeneous_layers_config_path": None,
}
"""What none of them has, with the value that says so."""

_DEFAULTS: Arguments = {
    "rotary_base": 10000,
    "layernorm_epsilon": 1e-5,
    "use_rope_scaling": False,
    "rope_scaling_factor": 8.0,
    "untie_embeddings_and_output_weights": False,
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "multi_latent_attention": False,
    "num_experts": None,
    "moe_router_topk": 2,
    "moe_layer_freq": 1,
    "moe_router_pre_softmax": False,
    "moe_router_score_function": "softmax",
    "moe_router_enable_expert_bias": False,
    "moe_shared_expert_intermediate_size": None,
}
"""Of the engine, for what a checkpoint or an experiment leaves open."""

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What the engine has built in: only the factor can be chosen."""

_FREE = frozenset({"max_position_embeddings", "vocab_size", "init_method_std", "hidden_dropout", "attention_dropout"})
"""May differ between an experiment and the checkpoint that it starts from."""


# --- from Hugging Face --------------------------------------------------------------------------------------------


def from_hf(config: Mapping[str, Any]) -> tuple[Family, Arguments]:
    """The family and Megatron's arguments of a ``config.json``. Raises ``UserError`` for what cannot be expressed."""
    kind = str(config.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        close = get_close_matches(kind, FAMILIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UserError(f"config.json: no rules for model_type {kind!r}{hint}; there are {', '.join(sorted(FAMILIES))}")
    if problems := [*_inexpressible(family, config)]:
        raise UserError("\n".join(f"config.json: {problem}" for problem in problems))
    arguments: Arguments = {key: _first(config, names) for key, names in _SAME.items()}
    heads = arguments["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    arguments |= _BLOCK | family.arguments
    arguments |= {
        "ffn_hidden_size": config["intermediate_size"],
        "untie_embeddings_and_output_weights": not config.get("tie_word_embeddings", False),
        **_rope(config),
    }
    if family is DEEPSEEK_V3:
        arguments |= _latent(config)
    else:
        arguments |= {
            "group_query_attention": groups != heads,
            "num_query_groups": groups,
            "kv_channels": config.get("head_dim") or arguments["hidden_size"] // heads,
        }
    if family.expert:
        arguments |= _experts(family, config)
    return family, arguments


def _experts(family: Family, config: Mapping[str, Any]) -> Arguments:
    arguments: Arguments = {key: _first(config, names) for key, names in _MIXTURE.items()}
    arguments["moe_ffn_hidden_size"] = config.get("moe_intermediate_size") or config["intermediate_size"]
    if family is QWEN3_MOE:
        arguments["moe_router_pre_softmax"] = not config.get("norm_topk_prob", False)
        step, dense = config.get("decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
        mixed = [int(layer not in dense and (layer + 1) % step == 0) for layer in range(config["num_hidden_layers"])]
        arguments["moe_layer_freq"] = 1 if all(mixed) else mixed
    return arguments


def _latent(config: Mapping[str, Any]) -> Arguments:
    dense = config.get("first_k_dense_replace", 0)
    return {
        **{key: _first(config, names) for key, names in _LATENT.items()},
        "kv_channels": config["qk_rope_head_dim"],
        "group_query_attention": False,
        "qk_layernorm": True,
        "rope_type": "rope",
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_shared_expert_intermediate_size": config["moe_intermediate_size"] * config.get("n_shared_experts", 1),
        "moe_layer_freq": [int(layer >= dense) for layer in range(config["num_hidden_layers"])] if dense else 1,
    }


def _rope(config: Mapping[str, Any]) -> Arguments:
    rope = config.get("rope_parameters") or {}
    base = rope.get("rope_theta") or config.get("rope_theta") or 10000
    scaling = config.get("rope_scaling") or (rope if _rope_type(rope) != "default" else None)
    arguments: Arguments = {"rotary_base": int(base) if base == int(base) else base}
    if scaling:
        arguments |= {"use_rope_scaling": True, "rope_scaling_factor": float(scaling["factor"])}
    return arguments


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _inexpressible(family: Family, config: Mapping[str, Any]) -> Iterator[str]:
    if missing := [name for names in _SAME.values() for name in names if name not in config and name not in _OPTIONAL]:
        yield f"{', '.join(missing)} missing"
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        yield f"hidden_act: {activation} is not SwiGLU's silu"
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            yield f"{name}: Megatron has biases of queries, keys and values alone (qwen2), or of all layers"
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = _rope_type(rope)
    if kind == "llama3":
        if wrong := {key: rope.get(key) for key, value in _LLAMA3_ROPE.items() if rope.get(key) != value}:
            has = ", ".join(f"{key} {value}" for key, value in wrong.items())
            built_in = ", ".join(f"{key} {_LLAMA3_ROPE[key]}" for key in wrong)
            yield f"rope scaling has {has}; the engine has {built_in} built in"
    elif kind != "default":
        yield f"rope scaling of type {kind!r}: the engine has that of Llama 3 only for this family"
    if float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        yield "partial_rotary_factor: rotary positions on a part of each head"
    windowed = config.get("use_sliding_window", True) and config.get("sliding_window")
    if windowed and windowed < config.get("max_position_embeddings", 0):
        yield f"sliding_window: {windowed} is less than the context"
    if config.get("quantization_config"):
        yield "quantization_config: the weights are quantized; take the unquantized ones"


_OPTIONAL = ("initializer_range",)


# --- to Hugging Face ----------------------------------------------------------------------------------------------


def to_hf(arguments: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The family and the ``config.json`` of Megatron's arguments. Raises ``UserError`` for what no family has."""
    family = family_of(arguments)
    wanted = _BLOCK | _ABSENT
    differing = {
        key: arguments[key]
        for key, value in wanted.items()
        if key in arguments and "dropout" not in key and _differs(arguments[key], value)
    }
    if differing:
        has = ", ".join(f"{key}: {value}" for key, value in differing.items())
        raise UserError(f"{family.architecture} cannot be this model: {has}")
    full = complete(arguments)
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_act": "silu",
        **{names[0]: full[key] for key, names in _SAME.items() if full.get(key) is not None},
        "intermediate_size": full["ffn_hidden_size"],
        "tie_word_embeddings": not full["untie_embeddings_and_output_weights"],
        "rope_theta": float(full["rotary_base"]),
        "rope_scaling": None,
        "attention_dropout": 0.0,
        "use_cache": True,
        **family.config,
    }
    if full["use_rope_scaling"]:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": float(full["rope_scaling_factor"]), **_LLAMA3_ROPE}
    if family is DEEPSEEK_V3:
        config |= _latent_to_hf(full)
    else:
        config |= {"num_key_value_heads": full["num_query_groups"], "head_dim": full["kv_channels"]}
    if family.expert:
        config |= _experts_to_hf(family, full)
    return family, config


def _experts_to_hf(family: Family, full: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {"num_experts_per_tok": full["moe_router_topk"]}
    mixed = full["moe_layer_freq"]
    if family is MIXTRAL:
        if full["moe_router_pre_softmax"] or mixed != 1:
            raise UserError("MixtralForCausalLM has experts in every layer, and a softmax over the chosen ones")
        return config | {"num_local_experts": full["num_experts"], "intermediate_size": full["moe_ffn_hidden_size"]}
    config["moe_intermediate_size"] = full["moe_ffn_hidden_size"]
    if family is DEEPSEEK_V3:
        return config | {"n_routed_experts": full["num_experts"]}
    dense = [] if mixed == 1 else [layer for layer, each in enumerate(mixed) if not each]
    return config | {
        "num_experts": full["num_experts"],
        "norm_topk_prob": not full["moe_router_pre_softmax"],
        "mlp_only_layers": dense,
    }


def _latent_to_hf(full: Mapping[str, Any]) -> dict[str, Any]:
    if full["moe_router_score_function"] != "sigmoid" or not full["moe_router_enable_expert_bias"]:
        raise UserError("DeepseekV3ForCausalLM scores experts by a sigmoid with a bias for each")
    mixed = full["moe_layer_freq"]
    dense = 0 if mixed == 1 else sum(not each for each in mixed)
    if mixed != 1 and list(mixed) != [int(layer >= dense) for layer in range(full["num_layers"])]:
        raise UserError("DeepseekV3ForCausalLM has layers without experts at its beginning only")
    return {
        **{names[0]: full.get(key) for key, names in _LATENT.items()},
        "num_key_value_heads": full["num_attention_heads"],
        "n_shared_experts": full["moe_shared_expert_intermediate_size"] // full["moe_ffn_hidden_size"],
        "first_k_dense_replace": dense,
        "norm_topk_prob": True,
        "rope_interleave": True,
    }


def family_of(arguments: Mapping[str, Any]) -> Family:
    """By what the arguments have that others have not."""
    get = arguments.get
    if get("multi_latent_attention"):
        return DEEPSEEK_V3
    if get("num_experts"):
        return QWEN3_MOE if get("qk_layernorm") else MIXTRAL
    if get("qk_layernorm"):
        return QWEN3
    return QWEN2 if get("add_qkv_bias") else LLAMA


# --- both ---------------------------------------------------------------------------------------------------------


def complete(arguments: Mapping[str, Any]) -> Arguments:
    """With the values that follow from others, or are the engine's own where nothing is said."""
    full = dict(_DEFAULTS) | {key: value for key, value in arguments.items() if value is not None}
    heads = full["num_attention_heads"]
    full.setdefault("ffn_hidden_size", int(full["hidden_size"] * 4 * 2 / 3 / 64) * 64)
    full.setdefault("kv_channels", full["hidden_size"] // heads)
    if not full.get("group_query_attention", "num_query_groups" in full) or "num_query_groups" not in full:
        full["num_query_groups"] = heads
    if full["num_experts"]:
        full.setdefault("moe_ffn_hidden_size", full["ffn_hidden_size"])
        if isinstance(full["moe_layer_freq"], str):
            full["moe_layer_freq"] = _pattern(full["moe_layer_freq"])
        if full["moe_layer_freq"] != 1 and isinstance(full["moe_layer_freq"], int):
            frequency = full["moe_layer_freq"]
            full["moe_layer_freq"] = [int(layer % frequency == 0) for layer in range(full["num_layers"])]
    return full


def _pattern(text: str) -> int | list[int]:
    """``1``, or an expression of lists such as ``[0]*3+[1]*58``."""
    if text.strip().isdecimal():
        return int(text)
    layers: list[int] = []
    for term in text.strip(" ()").split("+"):
        items, _, times = term.partition("*")
        layers += [int(each) for each in items.strip(" []()").split(",")] * int(times or 1)
    return layers


def sizes(arguments: Mapping[str, Any]) -> dict[str, int]:
    """What the words in shapes stand for."""
    full = complete(arguments)
    heads, head = full["num_attention_heads"], full["kv_channels"]
    numbers = {
        "vocab": full["vocab_size"],
        "hidden": full["hidden_size"],
        "ffn": full["ffn_hidden_size"],
        "head": head,
        "groups": full["num_query_groups"],
        "q": heads * head,
        "kv": full["num_query_groups"] * head,
        "experts": full["num_experts"] or 0,
        "moe": full.get("moe_ffn_hidden_size") or 0,
        "shared": full["moe_shared_expert_intermediate_size"] or 0,
    }
    if full["multi_latent_attention"]:
        rope, plain, value = full["qk_pos_emb_head_dim"], full["qk_head_dim"], full["v_head_dim"]
        numbers |= {
            "q": heads * (plain + rope),
            "qrank": full.get("q_lora_rank") or 0,
            "kvrank": full["kv_lora_rank"],
            "kvdown": full["kv_lora_rank"] + rope,
            "kvup": heads * (plain + value),
            "value": heads * value,
        }
    return numbers


def differences(arguments: Mapping[str, Any], config: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """Where an experiment is not for a model with these arguments; ``origins`` says where each value was written."""
    have, want = complete(arguments), complete(config)
    for key in sorted((_DEFAULTS.keys() | arguments.keys()) - _FREE - {"group_query_attention", "rope_type"}):
        if key.startswith("moe_") and not have["num_experts"]:
            continue
        if key == "rope_scaling_factor" and not have["use_rope_scaling"]:
            continue
        wanted = want.get(key)
        if key in have and (key in config or key in _DEFAULTS) and _differs(have[key], wanted):
            where = origins.get(key)
            yield f"{f'{where}: ' if where else ''}{key} is {wanted}, the checkpoint's {have[key]}"


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return one is None or other is None or abs(one - other) > 1e-9 * max(abs(one), abs(other), 1e-30)
    return bool(one != other) and bool(one or other)


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if name in config), None)
