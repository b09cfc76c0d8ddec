"""Families of models as data: which tensors of Hugging Face's model make up each of Megatron's.

Shapes are words: ``"kv hidden"`` is [key and value channels, hidden size]; ``settings.sizes`` gives the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

type How = Literal["rows", "qkv"]
"""``rows``: laid on each other in this order. ``qkv``: by groups of queries, with their key and value behind them."""

type Part = tuple[str, str]
"""A tensor of Hugging Face's model, its shape in words."""


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of Megatron's, and what it is made of.

    ``when`` names the argument that must be set for it, or with ``!`` must not. ``also`` is its name where a norm is
    a layer of its own or not, which depends on who computes it: Transformer Engine or PyTorch.
    """

    name: str
    parts: tuple[Part, ...]
    how: How = "rows"
    when: str = ""
    also: str = ""


def row(name: str, *parts: Part, how: How = "rows", when: str = "", also: str = "") -> Row:
    return Row(name, parts, how, when, also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``layer`` is in every layer; then come ``dense``, or ``mixture`` with one ``expert`` for each."""

    model_type: str
    architecture: str
    layer: tuple[Row, ...]
    dense: tuple[Row, ...] = ()
    mixture: tuple[Row, ...] = ()
    expert: tuple[Row, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Megatron's arguments that tell this family from others."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further values of Hugging Face's configuration."""


EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"

_EMBEDDING = row(EMBEDDING, ("model.embed_tokens.weight", "vocab hidden"))
_ENDS = (
    row("decoder.final_layernorm.weight", ("model.norm.weight", "hidden")),
    row(OUTPUT, ("lm_head.weight", "vocab hidden"), when="untie_embeddings_and_output_weights"),
)

_ATTENTION = (
    row("self_attention.linear_qkv.layer_norm_weight", ("input_layernorm.weight", "hidden")),
    row(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "q hidden"),
        ("self_attn.k_proj.weight", "kv hidden"),
        ("self_attn.v_proj.weight", "kv hidden"),
        how="qkv",
    ),
    row(
        "self_attention.linear_qkv.bias",
        ("self_attn.q_proj.bias", "q"),
        ("self_attn.k_proj.bias", "kv"),
        ("self_attn.v_proj.bias", "kv"),
        how="qkv",
        when="add_qkv_bias",
    ),
    row("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight", "head"), when="qk_layernorm"),
    row("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight", "head"), when="qk_layernorm"),
    row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight", "hidden q")),
)
_LATENT_ATTENTION = (
    row("input_layernorm.weight", ("input_layernorm.weight", "hidden")),
    row("self_attention.linear_q_proj.weight", ("self_attn.q_proj.weight", "q hidden"), when="!q_lora_rank"),
    row("self_attention.linear_q_down_proj.weight", ("self_attn.q_a_proj.weight", "qrank hidden"), when="q_lora_rank"),
    row(
        "self_attention.linear_q_up_proj.layer_norm_weight",
        ("self_attn.q_a_layernorm.weight", "qrank"),
        when="q_lora_rank",
        also="self_attention.q_layernorm.weight",
    ),
    row("self_attention.linear_q_up_proj.weight", ("self_attn.q_b_proj.weight", "q qrank"), when="q_lora_rank"),
    row("self_attention.linear_kv_down_proj.weight", ("self_attn.kv_a_proj_with_mqa.weight", "kvdown hidden")),
    row(
        "self_attention.linear_kv_up_proj.layer_norm_weight",
        ("self_attn.kv_a_layernorm.weight", "kvrank"),
        also="self_attention.kv_layernorm.weight",
    ),
    row("self_attention.linear_kv_up_proj.weight", ("self_attn.kv_b_proj.weight", "kvup kvrank")),
    row("self_attention.linear_proj.weight", ("self_attn.o_proj.weight", "hidden value")),
)


def _mlp(prefix: str, theirs: str, width: str, names: tuple[str, str, str]) -> tuple[Row, Row]:
    """SwiGLU: gate and up on each other, then down."""
    gate, up, down = (f"{theirs}.{name}.weight" for name in names)
    return (
        row(f"{prefix}.linear_fc1.weight", (gate, f"{width} hidden"), (up, f"{width} hidden")),
        row(f"{prefix}.linear_fc2.weight", (down, f"hidden {width}")),
    )


_NAMES = ("gate_proj", "up_proj", "down_proj")
_FUSED_NORM, _NORM = "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"
_BEFORE_MLP = ("post_attention_layernorm.weight", "hidden")
_DENSE = (row(_FUSED_NORM, _BEFORE_MLP, also=_NORM), *_mlp("mlp", "mlp", "ffn", _NAMES))
_BEFORE_EXPERTS = row(_NORM, _BEFORE_MLP, also=_FUSED_NORM)
_ROUTER = row("mlp.router.weight", ("mlp.gate.weight", "experts hidden"))
_EXPERT = _mlp("mlp.experts.experts", "mlp.experts.{expert}", "moe", _NAMES)

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    layer=_ATTENTION,
    dense=_DENSE,
    config={"attention_bias": False, "mlp_bias": False},
)
QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    layer=_ATTENTION,
    dense=_DENSE,
    arguments={"add_qkv_bias": True},
    config={"use_sliding_window": False},
)
QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    layer=_ATTENTION,
    dense=_DENSE,
    arguments={"qk_layernorm": True},
    config={"attention_bias": False, "use_sliding_window": False},
)
MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    layer=_ATTENTION,
    mixture=(
        _BEFORE_EXPERTS,
        row("mlp.router.weight", ("block_sparse_moe.gate.weight", "experts hidden")),
    ),
    expert=_mlp("mlp.experts.experts", "block_sparse_moe.experts.{expert}", "moe", ("w1", "w3", "w2")),
    config={"sliding_window": None},
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    layer=_ATTENTION,
    dense=_DENSE,
    mixture=(_BEFORE_EXPERTS, _ROUTER),
    expert=_EXPERT,
    arguments={"qk_layernorm": True},
    config={"attention_bias": False, "use_sliding_window": False, "decoder_sparse_step": 1},
)
DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    layer=_LATENT_ATTENTION,
    dense=_DENSE,
    mixture=(
        _BEFORE_EXPERTS,
        _ROUTER,
        row(
            "mlp.router.expert_bias",
            ("mlp.gate.e_score_correction_bias", "experts"),
            when="moe_router_enable_expert_bias",
        ),
        *(
            replace(each, when="moe_shared_expert_intermediate_size")
            for each in _mlp("mlp.shared_experts", "mlp.shared_experts", "shared", _NAMES)
        ),
    ),
    expert=_EXPERT,
    arguments={"multi_latent_attention": True},
    config={"attention_bias": False},
)

FAMILIES: Mapping[str, Family] = {
    family.model_type: family for family in (LLAMA, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
}


@dataclass(frozen=True, slots=True)
class Link:
    """One tensor of a whole model: ``name`` in its layer and expert, or in the model, and its parts with shapes."""

    name: str
    layer: int | None
    expert: int | None
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    how: How
    also: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of Megatron's tensor: parts lie on each other."""
        first = self.parts[0][1]
        return (sum(shape[0] for _, shape in self.parts), *first[1:])


def links(family: Family, arguments: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Link]:
    """Every tensor of a model with these arguments, in the order of its layers."""

    def make(rows: tuple[Row, ...], layer: int | None = None, expert: int | None = None) -> Iterator[Link]:
        prefix = "" if layer is None else f"model.layers.{layer}."
        for each in rows:
            if each.when and bool(arguments.get(each.when.lstrip("!"))) == each.when.startswith("!"):
                continue
            parts = tuple(
                (prefix + name.format(expert=expert), tuple(sizes[word] for word in shape.split()))
                for name, shape in each.parts
            )
            yield Link(each.name, layer, expert, parts, each.how, each.also)

    yield from make((_EMBEDDING,))
    for layer, mixed in enumerate(mixtures(arguments)):
        yield from make(family.layer, layer)
        yield from make(family.mixture if mixed else family.dense, layer)
        for expert in range(arguments["num_experts"] if mixed else 0):
            yield from make(family.expert, layer, expert)
    yield from make(_ENDS)


def mixtures(arguments: Mapping[str, Any]) -> list[bool]:
    """For each layer whether it has experts, as ``moe_layer_freq`` says: every so manyth, or a list of 0 and 1."""
    count, frequency = arguments["num_layers"], arguments.get("moe_layer_freq") or 1
    if not arguments.get("num_experts"):
        return [False] * count
    if isinstance(frequency, int):
        return [layer % frequency == 0 for layer in range(count)]
    return [bool(each) for each in frequency]
