"""Hybrid models of Mamba-2 and latent attention, as the model in ``primus_megatron.hf``.

A block there is two layers of Megatron's: a mixer and a SwiGLU layer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from primus_core.convert.order import Report
from primus_core.errors import UserError
from primus_megatron.convert import dist
from primus_megatron.hf import AUTO_MAP, CODE

type Shape = tuple[int, ...]
_MIXERS = {"M": "mamba", "+": "mla"}
ARGUMENTS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size", "hybrid_layer_pattern"),
    *("swiglu", "normalization", "add_bias_linear", "layernorm_epsilon", "untie_embeddings_and_output_weights"),
    *("hidden_dropout", "attention_dropout", "position_embedding_type", "max_position_embeddings", "model_type"),
    *("mamba_head_dim", "mamba_state_dim", "mamba_num_groups", "mamba_num_heads"),
    *("multi_latent_attention", "qk_layernorm", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim"),
    *("v_head_dim", "rotary_base", "rope_type", "rotary_scaling_factor", "mscale", "mscale_all_dim"),
)
"""Of Megatron's arguments those that describe such a model."""

_CARD = """---
library_name: transformers
---

# {name}

A hybrid language model of {blocks} blocks: {mixers}. Converted from a checkpoint of Megatron.

```python
AutoModelForCausalLM.from_pretrained("{name}", trust_remote_code=True)
```
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of the model: what it is made of, each with other names that it may have, and how."""

    name: str
    shape: Shape
    sources: tuple[tuple[str, ...], ...]
    make: Callable[[Sequence[torch.Tensor]], torch.Tensor] = lambda parts: torch.cat(list(parts))
    size: Shape | None = None
    """Of the only source, where it is another one."""


def config_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of Megatron's arguments. Raises ``UserError`` for layers that the model does not have."""
    pattern = str(arguments["hybrid_layer_pattern"]).partition("/")[0].replace("|", "")
    pairs = [pattern[start : start + 2] for start in range(0, len(pattern), 2)]
    if not all(pair[0] in _MIXERS and pair[1:] == "-" for pair in pairs):
        raise UserError(
            f"hybrid_layer_pattern: {pattern} is not made of pairs of M (Mamba) or + (latent attention) and - (dense)"
        )
    get, hidden = arguments.get, arguments["hidden_size"]
    wrong = [
        f"{key}: {get(key)}" for key, value in (("swiglu", True), ("normalization", "RMSNorm")) if get(key) != value
    ]
    wrong += ["add_bias_linear: true"] if get("add_bias_linear") else []
    if wrong:
        raise UserError(f"ZebraLlamaForCausalLM cannot be this model: {', '.join(wrong)}")
    head = get("mamba_head_dim") or 64
    config = {
        "architectures": ["ZebraLlamaForCausalLM"],
        "model_type": "zebra_llama",
        "auto_map": AUTO_MAP,
        "vocab_size": arguments["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": arguments["ffn_hidden_size"],
        "mixer_types": [_MIXERS[pair[0]] for pair in pairs],
        "num_attention_heads": arguments["num_attention_heads"],
        "norm_eps": get("norm_epsilon") or get("layernorm_epsilon") or 1e-5,
        "mamba_inner_size": (get("mamba_num_heads") or 2 * hidden // head) * head,
        "mamba_head_dim": head,
        "mamba_state_size": get("mamba_state_dim") or 128,
        "mamba_groups": get("mamba_num_groups") or 8,
        "max_position_embeddings": get("max_position_embeddings"),
        "tie_word_embeddings": not get("untie_embeddings_and_output_weights"),
    }
    if "mla" in config["mixer_types"]:
        if not (get("multi_latent_attention") and get("qk_layernorm") and get("q_lora_rank")):
            raise UserError(
                "latent attention of ZebraLlamaForCausalLM has compressed queries, and norms (qk_layernorm)"
            )
        yarn = get("rope_type", "yarn") == "yarn"
        config |= {
            "q_lora_rank": arguments["q_lora_rank"],
            "kv_lora_rank": arguments["kv_lora_rank"],
            "qk_nope_head_dim": arguments["qk_head_dim"],
            "qk_rope_head_dim": arguments["qk_pos_emb_head_dim"],
            "v_head_dim": arguments["v_head_dim"],
            "rope_theta": float(get("rotary_base") or 10000),
            "yarn_factor": float(get("rotary_scaling_factor") or 1.0) if yarn else 1.0,
            "yarn_original_context": get("original_max_position_embeddings") or 4096,
            "yarn_mscale": float(get("mscale") or 1.0),
            "yarn_mscale_all_dim": float(get("mscale_all_dim") or 0.0),
        }
    return config


def targets(config: Mapping[str, Any]) -> Iterator[Target]:
    """Every tensor of the model, in the order of its blocks."""
    c, hidden, ffn, vocab = config, config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    embedding = "embedding.word_embeddings.weight"
    yield Target("model.embeddings.weight", (vocab, hidden), ((embedding,),), lambda parts: parts[0][:vocab])
    for block, kind in enumerate(c["mixer_types"]):
        layer, mlp, ours = f"decoder.layers.{2 * block}.", f"decoder.layers.{2 * block + 1}.", f"model.layers.{block}."
        yield from (_mamba if kind == "mamba" else _latent)(c, layer, ours)
        fc1, norm = f"{mlp}mlp.linear_fc1.weight", f"{mlp}mlp.linear_fc1.layer_norm_weight"
        yield Target(f"{ours}mlp_norm.weight", (hidden,), ((f"{mlp}pre_mlp_layernorm.weight", norm),))
        for half, name in enumerate(("gate_proj", "up_proj")):
            yield Target(
                f"{ours}mlp.{name}.weight",
                (ffn, hidden),
                ((fc1,),),
                lambda parts, half=half: parts[0].chunk(2)[half],
                (2 * ffn, hidden),
            )
        yield Target(f"{ours}mlp.down_proj.weight", (hidden, ffn), ((f"{mlp}mlp.linear_fc2.weight",),))
    ends = ("decoder.final_norm.weight", "decoder.final_layernorm.weight")
    yield Target("model.norm.weight", (hidden,), (ends,))
    if not c["tie_word_embeddings"]:
        yield Target("lm_head.weight", (vocab, hidden), (("output_layer.weight",),), lambda parts: parts[0][:vocab])


def _mamba(c: Mapping[str, Any], layer: str, ours: str) -> Iterator[Target]:
    hidden, inner, states = c["hidden_size"], c["mamba_inner_size"], c["mamba_groups"] * c["mamba_state_size"]
    heads, channels, width = inner // c["mamba_head_dim"], inner + 2 * states, 4
    mixer, mine = f"{layer}mixer.", f"{ours}attn."

    def split(name: str, parts: str) -> tuple[tuple[str, ...], ...]:
        return tuple((f"{mixer}{name}.{part}",) for part in parts.split())

    yield Target(f"{ours}attn_norm.weight", (hidden,), ((f"{layer}norm.weight", f"{mixer}in_proj.layer_norm_weight"),))
    yield Target(f"{mine}in_proj.weight", (inner + channels + heads, hidden), split("in_proj.weight", "z x B C dt"))
    yield Target(f"{mine}conv1d.weight", (channels, 1, width), split("conv1d.weight", "x B C"))
    yield Target(f"{mine}conv1d.bias", (channels,), split("conv1d.bias", "x B C"))
    for name in ("A_log", "D", "dt_bias"):
        yield Target(f"{mine}{name}", (heads,), ((f"{mixer}{name}",),))
    yield Target(f"{mine}norm.weight", (inner,), ((f"{mixer}norm.weight",),))
    yield Target(f"{mine}out_proj.weight", (hidden, inner), ((f"{mixer}out_proj.weight",),))


def _latent(c: Mapping[str, Any], layer: str, ours: str) -> Iterator[Target]:
    hidden, heads, queries, rank = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    plain, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    theirs, mine = f"{layer}self_attention.", f"{ours}attn."
    down = (f"{theirs}linear_kv_down_proj.weight",)

    def halves(rows: torch.Tensor) -> torch.Tensor:
        """Megatron takes even and odd channels apart when it turns them."""
        return torch.cat([rows[..., 0::2, :], rows[..., 1::2, :]], -2)

    def of_heads(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        one, two = parts[0].unflatten(0, (heads, -1)).split([plain, turned], 1)
        return torch.cat([one, halves(two)], 1).flatten(0, 1)

    def also(name: str, place: str) -> tuple[tuple[str, ...], ...]:
        return ((f"{theirs}{name}.weight", f"{theirs}{place}.layer_norm_weight"),)

    up = heads * (plain + turned)
    yield Target(f"{ours}attn_norm.weight", (hidden,), ((f"{layer}input_layernorm.weight",),))
    yield Target(f"{mine}q_proj.0.weight", (queries, hidden), ((f"{theirs}linear_q_down_proj.weight",),))
    yield Target(f"{mine}q_proj.1.weight", (queries,), also("q_layernorm", "linear_q_up_proj"))
    yield Target(f"{mine}q_proj.2.weight", (up, queries), ((f"{theirs}linear_q_up_proj.weight",),), of_heads)
    size = (rank + turned, hidden)
    yield Target(f"{mine}kv_proj.0.weight", (rank, hidden), (down,), lambda parts: parts[0][:rank], size)
    yield Target(f"{mine}k_rope.weight", (turned, hidden), (down,), lambda parts: halves(parts[0][rank:]), size)
    yield Target(f"{mine}kv_proj.1.weight", (rank,), also("kv_layernorm", "linear_kv_up_proj"))
    yield Target(f"{mine}kv_proj.2.weight", (heads * (plain + value), rank), ((f"{theirs}linear_kv_up_proj.weight",),))
    yield Target(f"{mine}o_proj.weight", (hidden, heads * value), ((f"{theirs}linear_proj.weight",),))


def choose(config: Mapping[str, Any], source: dist.Checkpoint, report: Report) -> list[tuple[Target, list[str]]]:
    """Each tensor with the keys that it is made of; ``report`` gets what does not fit."""
    chosen, unused = list[tuple[Target, list[str]]](), set(source.keys)
    for target in targets(config):
        keys = [next((name for name in names if name in source.keys), "") for names in target.sources]
        unused -= {name for names in target.sources for name in names}
        if absent := [names[0] for names, key in zip(target.sources, keys, strict=True) if not key]:
            report.missing += [name for name in absent if name not in report.missing]
            continue
        shapes = [source.shape(key) for key in keys]
        found = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        wanted = target.size or target.shape
        padded = target.name in ("model.embeddings.weight", "lm_head.weight") and found[0] >= wanted[0]
        if found[1:] != wanted[1:] or not (found == wanted or padded):
            report.mismatched.append(f"{keys[0]}: {[*found]}, expected {[*wanted]}")
            continue
        chosen.append((target, keys))
    report.extra += sorted(unused)
    return chosen


def lay_code(folder: Path, config: Mapping[str, Any], name: str) -> None:
    """The model's code and a card that says what it is."""
    for file in CODE:
        shutil.copyfile(file, folder / file.name)
    kinds = list(config["mixer_types"])
    mixers = ", ".join(f"{kinds.count(kind)} of {kind}" for kind in dict.fromkeys(kinds))
    (folder / "README.md").write_text(_CARD.format(name=name, blocks=len(kinds), mixers=mixers), encoding="utf-8")
