"""The ``config.json`` of flavors whose files have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from primus_core.errors import UserError


def hf_config(model: str, args: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Of a model with these arguments. Raises ``UserError`` for one that is not known here."""
    if model not in DESCRIBED:
        raise UserError(
            f"model.hf_assets_path: no config.json there; for {model} take the folder of the model on the hub, "
            f"only {' and '.join(DESCRIBED)} are described without one"
        )
    config: dict[str, Any] = DESCRIBED[model](args, weights)
    return {
        "hidden_act": "silu",
        "hidden_size": args.dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads or args.n_heads,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": float(args.rope_theta),
        "max_position_embeddings": args.max_seq_len,
        "tie_word_embeddings": bool(getattr(args, "enable_weight_tying", False)),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        **config,
    }


def _llama3(args: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    rope = args.rope_scaling_args
    scaling = {
        "rope_type": "llama3",
        "factor": float(rope.scaling_factor),
        "low_freq_factor": float(rope.low_freq_factor),
        "high_freq_factor": float(rope.high_freq_factor),
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": weights["layers.0.feed_forward.w1.weight"].shape[0],
        "head_dim": args.dim // args.n_heads,
        "mlp_bias": False,
        "rope_scaling": scaling if rope.scaling_factor != 1 else None,
    }


def _qwen3(args: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    if not args.qk_norm:
        raise UserError("model.qk_norm: false is no Qwen 3")
    config = {"intermediate_size": args.hidden_dim, "head_dim": args.head_dim, "use_sliding_window": False}
    if not args.moe_enabled:
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **config}
    moe = args.moe_args
    if moe.score_func != "softmax" or moe.num_shared_experts:
        raise UserError("model.moe_args: Qwen 3 scores experts by a softmax and shares none")
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **config,
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": args.moe_inter_dim,
        "norm_topk_prob": moe.route_norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


DESCRIBED = {"llama3": _llama3, "qwen3": _qwen3}
"""By the engine's name of the model."""
