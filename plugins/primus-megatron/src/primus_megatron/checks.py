"""What is wrong with values that are right one by one. Light: neither torch nor the engine.

Megatron asserts most of this too, minutes later and on every rank. Each check is a function of the experiment and of
what is known about the place of the run, and yields problems with the place of the value that is best changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.values import Values
from primus_core.data.here import tokenizer_here, tokens_here
from primus_core.errors import Problem
from primus_core.platforms.precision import can_fp4, can_fp8
from primus_megatron.posttrain.checks import fine_tuning

_TE = "transformer-engine"

type Check = Callable[[Values, CheckContext], Iterable[Problem]]


def check(experiment: Experiment, context: CheckContext) -> Iterator[Problem]:
    """All problems of an experiment of this backend."""
    values = Values(experiment)
    for one in _CHECKS:
        yield from one(values, context)


# --- sizes --------------------------------------------------------------------------------------------------------

_FROM_1 = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_router_topk",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "seq_length",
    "max_position_embeddings",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "train_iters",
    "train_samples",
    "log_interval",
    "eval_interval",
)
_FROM_0 = (
    "num_workers",
    "eval_iters",
    "save_interval",
    "seed",
    "lr",
    "min_lr",
    "lr_warmup_iters",
    "lr_decay_iters",
    "weight_decay",
    "clip_grad",
    "init_method_std",
    "layernorm_epsilon",
)
_BELOW_1 = ("hidden_dropout", "attention_dropout", "lr_warmup_fraction", "adam_beta1", "adam_beta2")


def ranges(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Sizes count something, intervals pass, dropout leaves something."""
    for keys, least, limit in ((_FROM_1, 1, inf), (_FROM_0, 0, inf), (_BELOW_1, 0, 1)):
        for key in keys:
            if (value := values[key]) is not None and not least <= value < limit:
                wanted = f"at least {least}" + (f" and less than {limit}" if limit < inf else "")
                yield values.problem(key, f"must be {wanted}, not {value}")


_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def world_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The parallel sizes fit into the number of workers."""
    tp, pp, cp = (values.size(key) for key in _PARALLEL)
    ep, etp = values.size("expert_model_parallel_size"), values["expert_tensor_parallel_size"] or tp
    if values["num_experts"] is None:
        if ep > 1:
            yield values.problem("expert_model_parallel_size", f"{ep} needs experts, but num_experts is not set")
        ep = etp = 1
    world = context.world_size
    if world is None:
        return
    if world % (tp * pp * cp):
        yield values.problem(
            values.largest(*_PARALLEL),
            f"{world} workers do not divide by tensor x pipeline x context parallel size = {tp} x {pp} x {cp}",
        )
    elif world % (etp * ep * pp):
        yield values.problem(
            values.largest("expert_model_parallel_size", "expert_tensor_parallel_size"),
            f"{world} workers do not divide by expert tensor x expert x pipeline parallel size = {etp} x {ep} x {pp}",
        )


def batch_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The global batch is a whole number of micro batches on every data-parallel rank."""
    tp, pp, cp = (values.size(key) for key in _PARALLEL)
    micro, total, world = values["micro_batch_size"], values["global_batch_size"], context.world_size
    if world is None or world % (tp * pp * cp) or not micro or not total:
        return
    if values["rampup_batch_size"] or values["decrease_batch_size_if_needed"]:
        return
    replicas = world // (tp * pp * cp)
    step = micro * replicas
    if total % step:
        below, above = total // step * step, (total // step + 1) * step
        near = f"{below} or {above}" if below else str(above)
        yield values.problem(
            "global_batch_size",
            f"{total} does not divide by micro_batch_size x data-parallel size = {micro} x {replicas}; {near} would",
        )
    elif _virtual(values) and (total // step) % pp and not values["microbatch_group_size_per_vp_stage"]:
        yield values.problem(
            "global_batch_size",
            f"{total // step} micro batches a step do not divide by pipeline_model_parallel_size = {pp}, "
            "which interleaved stages need",
        )


def heads(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Hidden size, heads and query groups fit together and into the tensor parallel size."""
    tp, hidden, count = values.size("tensor_model_parallel_size"), values["hidden_size"], values["num_attention_heads"]
    if not hidden or not count:
        return
    if hidden % count and not values["kv_channels"]:
        yield values.problem("hidden_size", f"{hidden} does not divide by num_attention_heads = {count}")
    if count % tp:
        yield values.problem("tensor_model_parallel_size", f"{count} attention heads do not divide by {tp}")
    if (feed_forward := values["ffn_hidden_size"]) and feed_forward % tp:
        yield values.problem("tensor_model_parallel_size", f"ffn_hidden_size = {feed_forward} does not divide by {tp}")
    groups = values["num_query_groups"]
    if values["group_query_attention"] and groups and not values["multi_latent_attention"]:
        if count % groups:
            yield values.problem("num_query_groups", f"{count} attention heads do not divide by {groups}")
        if groups % tp and tp % groups:
            yield values.problem(
                "tensor_model_parallel_size", f"{tp} is no multiple or divisor of {groups} query groups"
            )


def layers(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Pipeline stages hold a whole number of layers."""
    pp, count = values.size("pipeline_model_parallel_size"), values["num_layers"]
    given = [
        key
        for key in (
            "pipeline_model_parallel_layout",
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
        )
        if values[key]
    ]
    if len(given) > 1:
        yield values.problem(given[-1], f"cannot be combined with {' and '.join(given[:-1])}")
        return
    uneven = ("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    if not count or any(values[key] for key in uneven) or values["hybrid_layer_pattern"]:
        return
    count += sum(bool(values[f"account_for_{part}_in_pipeline_split"]) for part in ("embedding", "loss"))
    if count % pp:
        key = (
            values.largest("pipeline_model_parallel_size", "num_layers") if pp == 1 else "pipeline_model_parallel_size"
        )
        yield values.problem(
            key,
            f"{count} layers do not divide by {pp}; pipeline_model_parallel_layout can say which stage has how many",
        )
    elif (virtual := _virtual(values)) and pp > 1:
        per_stage = count // pp
        if per_stage % virtual:
            yield values.problem(given[0], f"{per_stage} layers of a pipeline stage do not divide by {virtual}")
    elif virtual:
        yield values.problem(given[0], "needs pipeline_model_parallel_size > 1")


def _virtual(values: Values) -> int:
    return values["num_virtual_stages_per_pipeline_rank"] or values["num_layers_per_virtual_pipeline_stage"] or 0


def experts(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Experts divide by what they are spread over, and a token finds enough of them."""
    count, ep = values["num_experts"], values.size("expert_model_parallel_size")
    if not count:
        return
    if count % ep:
        yield values.problem("expert_model_parallel_size", f"{count} experts do not divide by {ep}")
    topk = values["moe_router_topk"] or 0
    if topk > count:
        yield values.problem("moe_router_topk", f"{topk} experts of a token are more than num_experts = {count}")
    groups, of_token = values["moe_router_num_groups"], values["moe_router_group_topk"]
    if groups and count % groups:
        yield values.problem("moe_router_num_groups", f"{count} experts do not divide by {groups}")
    if groups and of_token and of_token > groups:
        yield values.problem("moe_router_group_topk", f"{of_token} is more than moe_router_num_groups = {groups}")


def sequence(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Sequences fit into the positions, and divide by what they are split over."""
    length, positions = values["seq_length"], values["max_position_embeddings"]
    tp, cp = values.size("tensor_model_parallel_size"), values.size("context_parallel_size")
    if not length:
        return
    if positions and length > positions:
        yield values.problem("seq_length", f"{length} is more than max_position_embeddings = {positions}")
    if cp > 1 and length % (2 * cp):
        yield values.problem("seq_length", f"{length} does not divide by 2 x context_parallel_size = {2 * cp}")
    elif values["sequence_parallel"] and tp > 1 and length % (tp * cp):
        yield values.problem(
            "seq_length", f"{length} does not divide by tensor_model_parallel_size x context = {tp * cp}"
        )


# --- the model and its training -----------------------------------------------------------------------------------


def required(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What every model needs."""
    keys = [
        "num_layers",
        "hidden_size",
        "seq_length",
        "max_position_embeddings",
        "micro_batch_size",
        "num_attention_heads",
    ]
    if values["hybrid_layer_pattern"]:
        keys.remove("num_layers")
    missing = [key for key in keys if values[key] is None]
    if missing:
        hint = "" if values.experiment.model else "; `model:` takes a preset that has them (primus models list)"
        yield values.problem(missing[0], f"not set{_and_also(missing[1:])}{hint}")
    if values["multi_latent_attention"] and values["group_query_attention"]:
        yield values.problem("multi_latent_attention", "cannot be combined with group_query_attention")
    if values["fp16"] and values["bf16"]:
        yield values.problem("fp16", "bf16 is true as well (by default); set it to false")


def _and_also(keys: list[str]) -> str:
    return f", nor {', '.join(keys)}" if keys else ""


def schedule(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The learning rate has time to warm up and a way to go."""
    steps, samples = values["train_iters"], values["train_samples"]
    if steps is None and samples is None:
        yield values.problem("train_iters", "not set, nor train_samples")
    elif steps and samples:
        yield values.problem("train_samples", "cannot be combined with train_iters")
    warmup = values["lr_warmup_iters"] or 0
    end = values["lr_decay_iters"] or steps
    if end and warmup >= end and not values["lr_warmup_fraction"]:
        name = "lr_decay_iters" if values["lr_decay_iters"] else "train_iters"
        yield values.problem("lr_warmup_iters", f"{warmup} is not less than {name} = {end}")
    if warmup and values["lr_warmup_fraction"]:
        yield values.problem("lr_warmup_fraction", "cannot be combined with lr_warmup_iters; set that to 0")
    lr, least = values["lr"], values["min_lr"]
    if lr is not None and least is not None and least > lr:
        yield values.problem("min_lr", f"{least} is more than lr = {lr}")


def recomputation(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Full recomputation says of which layers; selective recomputation cannot."""
    kind, method = values["recompute_granularity"], values["recompute_method"]
    if kind == "full" and not method:
        yield values.problem("recompute_granularity", "full needs recompute_method: uniform or block")
    if kind == "full" and method and values["recompute_num_layers"] is None:
        yield values.problem("recompute_method", f"{method} needs recompute_num_layers")
    if kind == "selective" and method:
        yield values.problem("recompute_method", f"{method} cannot be combined with recompute_granularity: selective")


def overlaps(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Communication that hides behind other work needs that work."""
    sharded = values["use_distributed_optimizer"] or values["use_megatron_fsdp"]
    if values["overlap_param_gather"] and not sharded:
        yield values.problem("overlap_param_gather", "needs use_distributed_optimizer")
    elif values["overlap_param_gather"] and not values["overlap_grad_reduce"] and not values["use_megatron_fsdp"]:
        yield values.problem("overlap_param_gather", "needs overlap_grad_reduce")


# --- data and files -----------------------------------------------------------------------------------------------

_SOURCES = (
    "data_path",
    "train_data_path",
    "data_args_path",
    "per_split_data_args_path",
)
_DATA_PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
_NO_DATA = (
    "no data: set train_data_path to what `primus data prepare` wrote (its path without .bin), "
    "or mock_data: true for random tokens"
)


def data(values: Values, context: CheckContext) -> Iterator[Problem]:
    """There is something to train on, and its files are there."""
    if values.experiment.stage != "pretrain":
        return
    given = [key for key in _SOURCES if values[key]]
    if values["mock_data"]:
        for key in given:
            yield values.problem(key, "cannot be combined with mock_data: true; set that to false to train on it")
        return
    if not given:
        yield values.problem("mock_data", _NO_DATA)
    if context.platform is None:
        return
    for key in _DATA_PATHS:
        for prefix in _prefixes(values[key]):
            yield from tokens_here(values, key, prefix)


def _prefixes(value: Any) -> list[str]:
    """The files of a data path: a prefix, several, or weights and prefixes in turns."""
    words = [str(word) for item in ([value] if isinstance(value, str) else value or ()) for word in str(item).split()]
    weighted = len(words) > 1 and len(words) % 2 == 0 and all(_is_number(word) for word in words[::2])
    return words[1::2] if weighted else words


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d*\.?\d+(?:e[-+]?\d+)?", text, re.IGNORECASE) is not None


_HUB = ("HuggingFaceTokenizer", "Llama", "Mixtral", "DeepSeek", "Kimi")


def tokenizer(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The tokenizer is on this machine, or can be fetched."""
    kind, model = values["tokenizer_type"], values["tokenizer_model"]
    if values["mock_data"] and not (model and Path(model).exists()):
        if values["vocab_size"] is None and values["padded_vocab_size"] is None:
            yield values.problem("mock_data", "random tokens need a vocab_size where there is no local tokenizer")
        return
    if kind in ("NullTokenizer", "NullMultimodalTokenizer"):
        if values["vocab_size"] is None:
            yield values.problem("tokenizer_type", f"{kind} needs vocab_size")
        return
    if not model:
        yield values.problem(
            "tokenizer_model", "not set: give a folder with tokenizer.json, or a name on the Hugging Face hub"
        )
    elif context.platform is not None and (kind or "").startswith(_HUB):
        yield from tokenizer_here(values, "tokenizer_model")


def checkpoint(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What is to be loaded is there."""
    if context.platform is None:
        return
    for key in ("load", "pretrained_checkpoint"):
        path = values[key]
        must_be = values["exit_on_missing_checkpoint"] or key == "pretrained_checkpoint"
        if path and must_be and not any(folder.is_dir() for folder in (Path(path), values.experiment.folder / path)):
            yield values.problem(key, f"there is no folder {path}")


# --- features of the place ----------------------------------------------------------------------------------------

_ON_CPU = "there is no GPU here"
_OFF_WITHOUT_TE = {
    "cross_entropy_fusion_impl": ("te", "the engine's own fused loss is used"),
    "moe_permute_fusion": (True, "tokens are sorted without fusion"),
    "moe_router_fusion": (True, "the router runs without fusion"),
    "moe_grouped_gemm": (True, "experts run one after the other"),
    "tp_comm_overlap": (True, "tensor-parallel communication is not hidden"),
    "apply_rope_fusion": (True, "rotary embeddings are not fused"),
    "gradient_accumulation_fusion": (True, "gradients are added in a step of their own"),
    "transformer_impl": ("transformer_engine", "the engine's local layers are used"),
}
"""Options that only make a run faster: what happens without Transformer Engine, said where a user wrote them."""


def features(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What the installed packages can do. Precision and mathematics are never changed in silence."""
    if not context.installed or _has_te(context):
        return
    for key, (value, instead) in _OFF_WITHOUT_TE.items():
        if values[key] == value and values.by_user(key):
            yield values.problem(key, f"Transformer Engine is not installed: {instead}", "notice")


def _has_te(context: CheckContext) -> bool:
    return any(name.lower().replace("_", "-").startswith(_TE) for name in context.installed)


def precision(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What the hardware can compute with."""
    for key, able in (("fp8", can_fp8), ("fp4", can_fp4)):
        if not values[key]:
            continue
        if context.platform == "cpu":
            yield values.problem(key, f"{_ON_CPU}; null trains in BF16")
        elif unable := sorted({device.arch for device in context.devices if not able(device.arch)}):
            yield values.problem(key, f"{', '.join(unable)} cannot compute in {key.upper()}; null trains in BF16")


_CHECKS: tuple[Check, ...] = (
    ranges,
    required,
    world_size,
    batch_size,
    heads,
    layers,
    experts,
    sequence,
    schedule,
    recomputation,
    overlaps,
    data,
    tokenizer,
    checkpoint,
    features,
    precision,
    fine_tuning,
)
