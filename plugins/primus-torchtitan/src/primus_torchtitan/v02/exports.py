"""What makes a folder of weights a model of Hugging Face's libraries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def complete(folder: Path, args: Any, assets: Path) -> None:
    """Put the configuration and the tokenizer of ``assets`` beside the weights; of Llama 3 and Qwen 3 without experts
    a configuration can be made from the model's own sizes.
    """
    for name in (*_TOKENIZER, "config.json"):
        if (assets / name).is_file():
            shutil.copy(assets / name, folder)
    config = _llama(args) if type(args).__module__.startswith(_LLAMA) else _qwen(args)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


_LLAMA = ("torchtitan.models.llama3.", "primus_torchtitan.models.tied_llama3")


def _common(args: Any) -> dict[str, Any]:
    return {
        "hidden_size": args.dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads or args.n_heads,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": float(args.rope_theta),
        "max_position_embeddings": args.max_seq_len,
        "tie_word_embeddings": getattr(args, "enable_weight_tying", False),
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }


def _llama(args: Any) -> dict[str, Any]:
    inner = int(2 * 4 * args.dim / 3)  # as the engine rounds it
    inner = inner if args.ffn_dim_multiplier is None else int(args.ffn_dim_multiplier * inner)
    rope = args.rope_scaling_args
    return _common(args) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": -(-inner // args.multiple_of) * args.multiple_of,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope.scaling_factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        },
    }


def _qwen(args: Any) -> dict[str, Any] | None:
    if not type(args).__module__.startswith("torchtitan.models.qwen3.") or args.moe_enabled:
        return None
    return _common(args) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": args.hidden_dim,
        "head_dim": args.head_dim,
    }
