"""What is wrong with values that are right one by one. Light: neither torch nor the engine.

torchtitan asserts most of this too, on every rank and after the model is built. Each check is a function of the
experiment and of what is known about the place of the run; it yields problems with the place of a value to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.config.values import Values
from primus_core.data.here import tokenizer_here, tokens_here
from primus_core.errors import Problem
from primus_core.platforms.precision import can_fp8
from primus_torchtitan.flavors import Fields, find, own, shipped

type Check = Callable[[Values, CheckContext], Iterable[Problem]]

JOB_KEYS = frozenset(("name", "flavor", "hf_assets_path", "tokenizer_path", "converters", "print_after_conversion"))
"""Keys of ``model`` that are not fields of a flavor."""

_DP, _SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
_TP, _CP, _PP = (f"parallelism.{kind}_parallel_degree" for kind in ("tensor", "context", "pipeline"))
_EP, _ETP = "parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"
_LOCAL, _GLOBAL, _LENGTH = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
_MICRO = "parallelism.pipeline_parallel_microbatch_size"
_CUSTOM = "experimental.custom_import"


def check(experiment: Experiment, context: CheckContext) -> Iterator[Problem]:
    """All problems of an experiment of this backend."""
    values = Values(experiment)
    wrong = [*positive(values, context), *flavor(values, context)]
    yield from wrong
    if not wrong:
        for one in _CHECKS:
            yield from one(values, context)


# --- the model ----------------------------------------------------------------------------------------------------


def base_of(values: Values) -> Fields | None:
    """The fields of the flavor as it is shipped; None for a flavor that is not, as in models that others build."""
    name, kind = values["model.name"], values["model.flavor"]
    added = own().get(values.experiment.model or "")
    if added:
        return find(name, kind) if (added["name"], added["flavor"]) == (name, kind) else None
    return None if values.experiment.builder else shipped().get(name, {}).get(kind)


def fields_of(values: Values) -> Fields:
    """The fields of the model with the experiment's own values; empty for a model that others build."""
    base = base_of(values)
    return {} if base is None else {**base, **{name: leaf.value for name, leaf in _overrides(values)}}


def _overrides(values: Values) -> Iterator[tuple[str, Leaf]]:
    model = values.experiment.config.items.get("model")
    for path, leaf in model.leaves() if isinstance(model, Tree) else ():
        if path[0] not in JOB_KEYS:
            yield ".".join(path), leaf


def flavor(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The model and its flavor exist, and the flavor has the fields that are set."""
    name, kind, preset = values["model.name"], values["model.flavor"], values.experiment.model or ""
    if (base := base_of(values)) is not None:
        somewhere = {field for flavors in shipped().values() for fields in flavors.values() for field in fields}
        for field, leaf in _overrides(values):
            if field not in base and field in somewhere:
                yield Problem(leaf.key, f"model.{field}: {name} has no such field{_suggestion(field, base)}")
    elif added := own().get(preset):
        yield values.problem("model.flavor", f"the model {preset} is {added['name']} {added['flavor']!r}, not {kind!r}")
    elif values.experiment.builder or values[_CUSTOM]:
        return
    elif name not in shipped():
        yield values.problem("model.name", f"there is no {name!r}{_suggestion(name, shipped())}")
    else:
        hint = _suggestion(kind, shipped()[name])
        for other, added in own().items():
            if (added["name"], added["flavor"]) == (name, kind):
                hint = f"; the preset {other} does: `model: {other}.yaml`"
        yield values.problem("model.flavor", f"{name} has no {kind!r}{hint}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(str(name).lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else f"; there are {', '.join(sorted(by_lower.values()))}"


def heads(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Heads fit into the hidden size, and they and their keys into the tensor parallel degree."""
    fields, tp = fields_of(values), values.size(_TP)
    count, groups, dim = fields.get("n_heads"), fields.get("n_kv_heads"), fields.get("dim")
    if not count or not dim:
        return
    if dim % count and not {"head_dim", "v_head_dim"} & fields.keys():
        yield values.problem(_set(values, "model.dim", "model.n_heads"), f"{dim} does not divide by {count} heads")
    if groups and count % groups:
        key = _set(values, "model.n_kv_heads", "model.n_heads")
        yield values.problem(key, f"{count} heads do not divide by {groups} of keys and values")
    if count % tp:
        yield values.problem(_TP, f"{count} attention heads do not divide by {tp}")
    elif groups and groups % tp:
        yield values.problem(_TP, f"{groups} heads of keys and values do not divide by {tp}")


def _set(values: Values, *keys: str) -> str:
    """The first of these keys that somebody set."""
    return next((key for key in keys if values[key] is not None), "model.flavor")


def experts(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Experts divide by what they are spread over, and a token finds enough of them."""
    fields, ep, etp, tp = fields_of(values), values.size(_EP), values.size(_ETP), values.size(_TP)
    count = fields.get("moe_args.num_experts") if fields.get("moe_enabled", True) else None
    if not fields:
        return
    if not count:
        if ep > 1:
            yield values.problem(_EP, f"{ep} needs experts; {values['model.name']} {values['model.flavor']} has none")
        return
    if count % ep:
        yield values.problem(_EP, f"{count} experts do not divide by {ep}")
    if ep > 1 and etp not in (1, tp):
        yield values.problem(_ETP, f"{etp} is neither 1 nor tensor_parallel_degree = {tp}")
    if (of_token := fields["moe_args.top_k"]) > count:
        key = _set(values, "model.moe_args.top_k", "model.moe_args.num_experts")
        yield values.problem(key, f"{of_token} experts of a token are more than {count}")


# --- sizes --------------------------------------------------------------------------------------------------------


def positive(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Degrees and counts start at 1; two of them take -1 for whatever is left."""
    for key in (_DP, _TP, _CP, _PP, _EP, _ETP, _MICRO, _LOCAL, _LENGTH, "training.steps", "metrics.log_freq"):
        if values[key] is not None and values[key] < 1:
            yield values.problem(key, f"{values[key]} is less than 1")
    for key in (_SHARD, _GLOBAL):
        if values[key] is not None and values[key] < 1 and values[key] != -1:
            yield values.problem(key, f"{values[key]} is neither at least 1 nor -1, which takes what is left")


class Degrees(NamedTuple):
    """How many ranks there are of each kind; ``shard`` is None where the number of workers is not known."""

    replicate: int
    shard: int | None
    context: int
    tensor: int
    pipeline: int


def degrees(values: Values, context: CheckContext) -> Degrees:
    """The parallel degrees, with -1 replaced by what is left of the workers."""
    replicate, cp, tp, pp = (values.size(key) for key in (_DP, _CP, _TP, _PP))
    shard = values[_SHARD]
    if shard in (None, -1):
        shard = None if context.world_size is None else context.world_size // (replicate * cp * tp * pp)
    return Degrees(replicate, shard, cp, tp, pp)


def world_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The parallel degrees make up the number of workers."""
    world, (replicate, shard, cp, tp, pp) = context.world_size, degrees(values, context)
    ep, etp = values.size(_EP), values.size(_ETP)
    if world is None or shard is None:
        return
    if replicate * max(shard, 1) * cp * tp * pp != world:
        if values[_SHARD] in (None, -1):
            words = f"replicate x context x tensor x pipeline degree = {replicate} x {cp} x {tp} x {pp}"
            yield values.problem(values.largest(_TP, _PP, _CP, _DP), f"{world} workers do not divide by {words}")
        else:
            words = (
                f"replicate x shard x context x tensor x pipeline degree = {replicate} x {shard} x {cp} x {tp} x {pp}"
            )
            yield values.problem(_SHARD, f"{words} is not the {world} workers that there are; -1 takes what is left")
    elif ep > 1 and shard * cp * tp % (etp * ep):
        words = f"shard x context x tensor degree = {shard} x {cp} x {tp}"
        yield values.problem(_EP, f"{words} does not divide by expert x expert tensor degree = {ep} x {etp}")
    elif replicate > 1 and shard * cp == 1 and tp * pp > 1:
        yield values.problem(_DP, "replicas that are not sharded exclude tensor and pipeline parallelism")


def batch_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The global batch is a whole number of local batches on every data-parallel rank, sequences of their parts."""
    local, total, length = values.size(_LOCAL), values[_GLOBAL], values[_LENGTH]
    replicate, shard, cp, tp, _ = degrees(values, context)
    if shard and total and total != -1 and total % (step := local * replicate * shard):
        below, above = total // step * step, (total // step + 1) * step
        near = f"{below} or {above}" if below else str(above)
        words = f"local_batch_size x data-parallel ranks = {local} x {replicate * shard}"
        yield values.problem(_GLOBAL, f"{total} does not divide by {words}; {near} would")
    if tp * cp > 1 and length and length % (2 * cp * tp):
        key = _LENGTH if values.by_user(_LENGTH) else values.largest(_TP, _CP)
        yield values.problem(
            key, f"sequences of {length} do not divide by 2 x context x tensor degree = 2 x {cp} x {tp}"
        )


_SINGLE = ("1F1B", "GPipe")
_MULTI = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
_LESS = tuple(f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
_SCHEDULE, _CSV = "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule_csv"


def pipeline(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Stages have layers, and batches fit the schedule."""
    pp, fields = values.size(_PP), fields_of(values)
    if pp == 1:
        return
    if fields.get("enable_weight_tying"):
        yield values.problem(_PP, "one matrix for embedding and output cannot lie in two stages; 1 is what works")
    if values.size(_LOCAL) % values.size(_MICRO):
        yield values.problem(_LOCAL, f"{values[_LOCAL]} does not divide by micro batches of {values[_MICRO]}")
    schedule = str(values[_SCHEDULE] or "1F1B")
    single = schedule.lower() in [name.lower() for name in _SINGLE]
    if csv := values[_CSV]:
        if context.platform is not None and not Path(csv).is_file():
            yield values.problem(_CSV, f"there is no file {csv}")
    elif not single and schedule.lower() not in [name.lower() for name in _MULTI]:
        yield values.problem(_SCHEDULE, f"there is no {schedule!r}{_suggestion(schedule, (*_SINGLE, *_MULTI))}")
    elif (layers := fields.get("n_layers")) and values["parallelism.module_fqns_per_model_part"] is None:
        first, last = (1 if values[key] is None else values[key] for key in _LESS)
        words = f"{layers} layers, counted as {(counted := layers + first + last)} with embedding and output,"
        if per_stage := values[_PER_STAGE]:
            stages = -(-counted // per_stage)
            if stages % pp or (stages != pp) == single:
                wanted = "1 stage" if single else "2 or more stages"
                yield values.problem(_PER_STAGE, f"{words} make {stages} stages; {schedule} wants {wanted} a rank")
        elif counted // (pp if single else 2 * pp) < max(1, first, last):
            yield values.problem(_PP, f"{words} are too few for {pp if single else 2 * pp} stages")


# --- features -----------------------------------------------------------------------------------------------------

_CONVERT, _TURBO = "model.converters", "primus_turbo"
_FLOAT8, _FLOAT8_EXPERTS = "quantize.linear.float8", "quantize.grouped_mm.float8"
_QUANTIZERS = (_FLOAT8, _FLOAT8_EXPERTS, "quantize.linear.mx", "quantize.grouped_mm.mx")
_EMULATE, _GATHER = f"{_FLOAT8}.emulate", f"{_FLOAT8}.enable_fsdp_float8_all_gather"
_ASYNC_TP, _BACKWARD = "parallelism.enable_async_tensor_parallel", "optimizer.early_step_in_backward"
_AC, _AC_OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


def converters(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Converters exist, their package is there, and the hardware can do what they ask for."""
    named, known = values[_CONVERT] or [], (*_QUANTIZERS, _TURBO)
    quantizers = [name for name in named if name in _QUANTIZERS]
    for name in named:
        if name not in known and not values[_CUSTOM]:
            yield values.problem(_CONVERT, f"there is no {name!r}{_suggestion(name, known)}")
    if _TURBO in named and values.by_user(_CONVERT):
        yield values.problem(_CONVERT, "primus_turbo does nothing here: its kernels are not used", "notice")
    if not quantizers:
        return
    instead = f"without {', '.join(quantizers)} the model trains in BF16"
    if context.installed and "torchao" not in context.installed:
        yield values.problem(_CONVERT, f"torchao is not installed (pip install primus-torchtitan[float8]); {instead}")
    if len({"mx" in name for name in quantizers}) > 1:
        yield values.problem(_CONVERT, "float8 and mx cannot be combined")
    if values[_EMULATE] and quantizers == [_FLOAT8]:
        return
    if context.platform == "cpu":
        hint = f"{_EMULATE}: true computes as if, and " if quantizers == [_FLOAT8] else ""
        yield values.problem(_CONVERT, f"there is no GPU here; {hint}{instead}")
    elif unable := sorted({device.arch for device in context.devices if not can_fp8(device.arch)}):
        yield values.problem(_CONVERT, f"{', '.join(unable)} cannot compute in FP8; {instead}")


def features(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What parts of the engine need of each other, and of the place."""
    cpu, attention = context.platform == "cpu", fields_of(values).get("attn_type", "sdpa")
    compiled = values["compile.enable"] and "model" in (values["compile.components"] or ())
    cp, tp, pp, ep = (values.size(key) > 1 for key in (_CP, _TP, _PP, _EP))
    named, recipe, option = values[_CONVERT] or [], values[f"{_FLOAT8}.recipe_name"], str(values[_AC_OPTION] or "2")
    layers = re.fullmatch(r"op|[1-9]\d*", option)
    rules = (
        (cp and values["model.name"] == "gpt_oss", _CP, "GPT-OSS cannot be split along the sequence; 1 is what works"),
        (cp and attention != "sdpa", _CP, f"needs attn_type: sdpa, and that of this model is {attention}"),
        (cpu and attention == "varlen", "model.flavor", "varlen attention needs a GPU; model.attn_type: sdpa does not"),
        (values[_ASYNC_TP] and tp and not compiled, _ASYNC_TP, "needs compile.enable, with model in its components"),
        (values[_BACKWARD] and (ep or pp), _BACKWARD, "cannot be combined with expert or pipeline parallelism"),
        (values[_AC] == "memory_budget" and not compiled, _AC, "memory_budget needs compile.enable"),
        (values[_AC] == "selective" and not layers, _AC_OPTION, f"{option} is neither op nor a number of layers"),
        (values[_EMULATE] and _FLOAT8 in named and compiled, _EMULATE, "cannot be combined with compile.enable"),
        (values[_GATHER] and recipe, _GATHER, f"cannot be combined with recipe_name: {recipe}"),
        (_FLOAT8_EXPERTS in named and (pp or cp), _CONVERT, "float8 experts exclude pipelines and split sequences"),
    )
    for wrong, key, message in rules:
        if wrong:
            yield values.problem(key, message)
    if cpu and values["compile.enable"] and values.by_user("compile.enable"):
        yield values.problem("compile.enable", "compiling for a CPU takes minutes before the first step", "notice")


_OPTIMIZERS = ("Adam", "AdamW")
_WARMUP = "lr_scheduler.warmup_steps"


def schedule(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The optimizer exists, and its rate has room to rise and fall."""
    if (name := values["optimizer.name"]) and name not in _OPTIMIZERS:
        yield values.problem("optimizer.name", f"there is no {name!r}{_suggestion(name, _OPTIMIZERS)}")
    total = values["lr_scheduler.total_steps"] or values["training.steps"]
    if total and (values[_WARMUP] or 0) > total and values.by_user(_WARMUP):
        yield values.problem(_WARMUP, f"{values[_WARMUP]} is more than {total} steps: all of them warm up", "notice")
    for key in ("lr_scheduler.decay_ratio", "lr_scheduler.min_lr_factor"):
        if values[key] is not None and not 0 <= values[key] <= 1:
            yield values.problem(key, f"{values[key]} is not between 0 and 1")


# --- files --------------------------------------------------------------------------------------------------------

_DATASETS = ("text", "tokens", "c4", "c4_test", "c4_validation")
_LOAD, _KEEP = "checkpoint.initial_load_path", "checkpoint.keep_latest_k"
_SEED, _IN_HF = "checkpoint.create_seed_checkpoint", "checkpoint.last_save_in_hf"


def files(values: Values, context: CheckContext) -> Iterator[Problem]:
    """There is something to train on, and what is to be read is there."""
    here = context.platform is not None
    if values[_KEEP] == 1:
        yield values.problem(_KEEP, "1 may be in the making; keep at least 2, or 0 for all")
    for key in () if values["checkpoint.enable"] else (_LOAD, "checkpoint.initial_load_in_hf", _IN_HF, _SEED):
        if values[key]:
            yield values.problem(key, "needs checkpoint.enable: true")
    if values[_IN_HF] and not values["checkpoint.last_save_model_only"]:
        yield values.problem(_IN_HF, "the files hold weights only: needs checkpoint.last_save_model_only: true")
    if values[_SEED] and (context.world_size or 1) > 1:
        yield values.problem(_SEED, f"is made by one worker, and there are {context.world_size}")
    if not values["training.mock_data"]:
        for section in ("training", "validation") if values["validation.enable"] else ("training",):
            yield from _data(values, section, here)
        if here and values["training.dataset"] != "tokens":
            yield from tokenizer_here(values, "model.hf_assets_path")
    if here and values["checkpoint.enable"] and (load := values[_LOAD]) and not _exists(load):
        yield values.problem(_LOAD, f"there is no folder {load}")


def _data(values: Values, section: str, here: bool) -> Iterator[Problem]:
    key, path_key = f"{section}.dataset", f"{section}.dataset_path"
    name, path = values[key], values[path_key]
    if name not in _DATASETS and not values[_CUSTOM]:
        yield values.problem(key, f"there is no {name!r}{_suggestion(name, _DATASETS)}")
    elif name in ("text", "tokens") and not path:
        yield values.problem(key, f"{name} needs {path_key}")
    elif name == "c4_test" and not path:
        remedy = f"{key}: text with {path_key} for your own, or training.mock_data: true for made-up tokens"
        yield values.problem(key, f"c4_test is not part of torchtitan's wheel; {remedy}")
    elif here and name == "tokens":
        yield from tokens_here(values, path_key, path)
    elif here and path and not _exists(path):
        yield values.problem(path_key, f"there is no {path}")


def _exists(path: str) -> bool:
    """Whether a file or folder is there, or the folder of a pattern; addresses are not looked at."""
    return "://" in path or Path(re.split(r"/[^/]*[*?\[]", path)[0]).expanduser().exists()


_CHECKS: tuple[Check, ...] = (
    world_size,
    batch_size,
    heads,
    experts,
    pipeline,
    converters,
    features,
    schedule,
    files,
)
