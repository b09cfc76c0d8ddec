"""What is wrong with values that are right one by one. Light: neither torch nor the engine.

torchtitan asserts most of this too, on every rank and after the model is built. Each check is a function of the
experiment, of the fields of its model's flavor and of what is known about the place of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.config.values import Values
from primus_core.data.here import tokenizer_here
from primus_core.errors import Problem
from primus_core.platforms.precision import can_fp8
from primus_torchtitan.flavors import Fields, own, shipped

type Check = Callable[[Values, CheckContext], Iterable[Problem]]

JOB_KEYS = frozenset(("name", "flavor", "hf_assets_path", "tokenizer_path", "converters", "print_after_conversion"))
"""Keys of ``model`` that are not fields of a flavor."""

_DP, _SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
_TP, _CP, _PP = (f"parallelism.{kind}_parallel_degree" for kind in ("tensor", "context", "pipeline"))
_EP, _ETP = "parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"


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
    """The fields of the flavor as it is shipped; None for a model that others build."""
    name, kind = values["model.name"], values["model.flavor"]
    added = own().get(values.experiment.model or "")
    flavors = shipped().get(name, {})
    if added and (added["name"], added["flavor"]) == (name, kind):
        return next(iter(flavors.values())) | added["fields"]
    return None if values.experiment.builder and not added else flavors.get(kind)


def fields_of(values: Values) -> Fields:
    """The fields of the model with the experiment's own values; empty for a model that others build."""
    base = base_of(values)
    return {} if base is None else {**base, **{name: leaf.value for name, leaf in _overrides(values.experiment)}}


def _overrides(experiment: Experiment) -> Iterator[tuple[str, Leaf]]:
    model = experiment.config.items.get("model")
    for path, leaf in model.leaves() if isinstance(model, Tree) else ():
        if path[0] not in JOB_KEYS:
            yield ".".join(path), leaf


def flavor(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The model and its flavor exist, and the flavor has the fields that are set."""
    name, kind = values["model.name"], values["model.flavor"]
    base = base_of(values)
    if base is not None:
        for field, leaf in _overrides(values.experiment):
            if field not in base:
                message = f"model.{field}: {name} has no such field{_suggestion(field, base)}"
                yield Problem(leaf.key, message)
        return
    if values.experiment.builder or values["experimental.custom_import"]:
        return
    if name not in shipped():
        yield values.problem("model.name", f"there is no {name!r}{_suggestion(name, shipped())}")
        return
    elsewhere = [preset for preset, added in own().items() if (added["name"], added["flavor"]) == (name, kind)]
    if elsewhere:
        yield values.problem(
            "model.flavor", f"{kind!r} of {name} is that of the preset {elsewhere[0]}; name it as model"
        )
    else:
        yield values.problem("model.flavor", f"{name} has no {kind!r}{_suggestion(kind, shipped()[name])}")


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
        yield values.problem(
            _set(values, "model.dim", "model.n_heads"), f"dim = {dim} does not divide by {count} heads"
        )
    if groups and count % groups:
        yield values.problem(
            _set(values, "model.n_kv_heads", "model.n_heads"), f"{count} heads do not divide by {groups} of keys"
        )
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
    if not fields:
        return
    count = fields.get("moe_args.num_experts") if fields.get("moe_enabled", True) else None
    if not count:
        if ep > 1:
            yield values.problem(
                _EP, f"{ep} needs experts, and {values['model.name']} {values['model.flavor']} has none"
            )
        return
    if count % ep:
        yield values.problem(_EP, f"{count} experts do not divide by {ep}")
    if ep > 1 and etp not in (1, tp):
        yield values.problem(_ETP, f"{etp} is neither 1 nor tensor_parallel_degree = {tp}")
    if values["parallelism.expert_parallel_comm_backend"] == "deepep":
        key = "parallelism.expert_parallel_comm_backend"
        if ep == 1 or etp > 1:
            yield values.problem(key, "deepep needs expert_parallel_degree > 1 and expert_tensor_parallel_degree: 1")
        if context.installed and "deep-ep" not in context.installed:
            yield values.problem(key, "the package deep-ep is not installed; standard needs none")
    of_token = fields.get("moe_args.top_k") or 0
    if of_token > count:
        key = _set(values, "model.moe_args.top_k", "model.moe_args.num_experts")
        yield values.problem(key, f"{of_token} experts of a token are more than {count}")


# --- sizes --------------------------------------------------------------------------------------------------------

_AT_LEAST_ONE = (_DP, _TP, _CP, _PP, _EP, _ETP, "parallelism.pipeline_parallel_microbatch_size")
_COUNTS = ("training.local_batch_size", "training.seq_len", "training.steps", "metrics.log_freq", "training.gc_freq")


def positive(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Degrees and counts start at 1; two of them take -1 for whatever is left."""
    for key in (*_AT_LEAST_ONE, *_COUNTS):
        if values[key] is not None and values[key] < 1:
            yield values.problem(key, f"{values[key]} is less than 1")
    for key in (_SHARD, "training.global_batch_size"):
        if values[key] is not None and values[key] < 1 and values[key] != -1:
            yield values.problem(key, f"{values[key]} is neither at least 1 nor -1, which takes what is left")


class Degrees(NamedTuple):
    """How many ranks there are of each kind; ``shard`` is None where the number of workers is not known."""

    replicate: int
    shard: int | None
    context: int
    tensor: int
    pipeline: int

    @property
    def data(self) -> int | None:
        """Ranks with data of their own."""
        return None if self.shard is None else self.replicate * self.shard


def degrees(values: Values, context: CheckContext) -> Degrees:
    """The parallel degrees, with -1 replaced by what is left of the workers."""
    replicate, cp, tp, pp = (values.size(key) for key in (_DP, _CP, _TP, _PP))
    shard = -1 if values[_SHARD] is None else values[_SHARD]
    if shard == -1:
        shard = None if context.world_size is None else context.world_size // (replicate * cp * tp * pp)
    return Degrees(replicate, shard, cp, tp, pp)


def world_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The parallel degrees make up the number of workers."""
    world, found = context.world_size, degrees(values, context)
    if world is None:
        return
    rest = found.replicate * found.context * found.tensor * found.pipeline
    if values[_SHARD] in (None, -1):
        if world % rest:
            words = f"{found.replicate} x {found.context} x {found.tensor} x {found.pipeline}"
            key = values.largest(_TP, _PP, _CP, _DP)
            yield values.problem(
                key, f"{world} workers do not divide by replicate x context x tensor x pipeline degree = {words}"
            )
            return
    elif found.shard is not None and rest * found.shard != world:
        words = " x ".join(str(degree) for degree in found)
        yield values.problem(
            _SHARD,
            f"replicate x shard x context x tensor x pipeline degree = {words} = {rest * found.shard}, "
            f"and there are {world} workers; -1 takes what is left",
        )
        return
    ep, etp = values.size(_EP), values.size(_ETP)
    sharded = (found.shard or 1) * found.context * found.tensor
    if ep > 1 and sharded % (etp * ep):
        yield values.problem(
            _EP,
            f"shard x context x tensor degree = {found.shard} x {found.context} x {found.tensor} does not divide by "
            f"expert x expert tensor degree = {ep} x {etp}",
        )
    if found.replicate > 1 and found.shard == 1 and found.context == 1 and found.tensor * found.pipeline > 1:
        yield values.problem(
            _DP, "replicas that are not sharded cannot be combined with tensor or pipeline parallelism"
        )


def batch_size(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The global batch is a whole number of local batches on every data-parallel rank."""
    local, total = values["training.local_batch_size"], values["training.global_batch_size"]
    replicas = degrees(values, context).data
    if replicas and local and total and total != -1 and total % (local * replicas):
        step = local * replicas
        below, above = total // step * step, (total // step + 1) * step
        near = f"{below} or {above}" if below else str(above)
        yield values.problem(
            "training.global_batch_size",
            f"{total} does not divide by local_batch_size x data-parallel ranks = {local} x {replicas}; {near} would",
        )


def sequence(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Sequences divide by what they are split over."""
    tp, cp, length = values.size(_TP), values.size(_CP), values["training.seq_len"]
    if tp * cp > 1 and length and length % (2 * cp * tp):
        yield values.problem(
            "training.seq_len", f"{length} does not divide by 2 x context x tensor degree = 2 x {cp} x {tp}"
        )


# --- pipelines ----------------------------------------------------------------------------------------------------

_SINGLE = {"1f1b": "1F1B", "gpipe": "GPipe"}
_MULTI = {
    "interleaved1f1b": "Interleaved1F1B",
    "loopedbfs": "LoopedBFS",
    "interleavedzerobubble": "InterleavedZeroBubble",
    "zbvzerobubble": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_LESS = tuple(f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_CSV = "parallelism.pipeline_parallel_schedule_csv"


def pipeline(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Stages have layers, and batches fit the schedule."""
    pp = values.size(_PP)
    if pp == 1:
        return
    fields, schedule = fields_of(values), str(values[_SCHEDULE] or "1F1B").lower()
    known = _SINGLE | _MULTI
    if fields.get("enable_weight_tying"):
        yield values.problem(_PP, "one matrix for embedding and output cannot lie in two stages; 1 is what works")
    if csv := values[_CSV]:
        if not Path(csv).is_file():
            yield values.problem(_CSV, f"there is no file {csv}")
    elif schedule not in known:
        yield values.problem(_SCHEDULE, f"there is no {values[_SCHEDULE]!r}{_suggestion(schedule, known.values())}")
    else:
        yield from _stages(values, fields.get("n_layers"), pp, schedule in _SINGLE)
    local, micro = values["training.local_batch_size"], values.size("parallelism.pipeline_parallel_microbatch_size")
    if local and local % micro:
        yield values.problem("training.local_batch_size", f"{local} does not divide by micro batches of {micro}")
    if values["optimizer.early_step_in_backward"]:
        yield values.problem("optimizer.early_step_in_backward", "cannot be combined with pipeline parallelism")


def _stages(values: Values, layers: int | None, pp: int, single: bool) -> Iterator[Problem]:
    if not layers or values["parallelism.module_fqns_per_model_part"] is not None:
        return
    first, last = (1 if values[key] is None else values[key] for key in _LESS)
    counted, per_rank = layers + first + last, 1 if single else 2
    words = f"{layers} layers, counted as {counted} with embedding and output,"
    if (per_stage := values[_PER_STAGE]) is not None:
        stages = -(-counted // per_stage) if per_stage > 0 else 0
        fits = stages and stages % pp == 0 and (stages == pp if single else stages >= 2 * pp)
        if not fits:
            wanted = "1 stage" if single else "a whole number of stages, at least 2,"
            yield values.problem(
                _PER_STAGE,
                f"{words} make {stages} stages, and {values[_SCHEDULE]} wants {wanted} on each of {pp} ranks",
            )
        return
    if counted // (pp * per_rank) < max(1, first, last):
        yield values.problem(_PP, f"{words} are too few for {pp * per_rank} stages")


# --- features -----------------------------------------------------------------------------------------------------

_TURBO = "primus_turbo"
_CONVERTERS = {
    "quantize.linear.float8": "torchao",
    "quantize.grouped_mm.float8": "torchao",
    "quantize.linear.mx": "torchao",
    "quantize.grouped_mm.mx": "torchao",
    _TURBO: "",
}
_CONVERT = "model.converters"
_EMULATE = "quantize.linear.float8.emulate"


def converters(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Converters exist, their packages are there, and the hardware can do what they ask for."""
    named = values[_CONVERT] or []
    for name in named:
        if name not in _CONVERTERS:
            if not values["experimental.custom_import"]:
                yield values.problem(_CONVERT, f"there is no {name!r}{_suggestion(name, _CONVERTERS)}")
            continue
        package = _CONVERTERS[name]
        if package and context.installed and package not in context.installed:
            yield values.problem(_CONVERT, f"{name} needs {package} (pip install primus-torchtitan[float8])")
    quantized = [name for name in named if _CONVERTERS.get(name)]
    if len({"mx" in name for name in quantized}) > 1:
        yield values.problem(_CONVERT, "float8 and mx cannot be combined")
    if quantized:
        yield from _low_precision(values, context, quantized)
    if _TURBO in named and values.by_user(_CONVERT):
        yield values.problem(
            _CONVERT, "primus_turbo does nothing here: the kernels of Primus-Turbo are not used", "notice"
        )


def _low_precision(values: Values, context: CheckContext, named: list[str]) -> Iterator[Problem]:
    emulated = values[_EMULATE] and named == ["quantize.linear.float8"]
    archs = {device.arch for device in context.devices}
    instead = f"{_CONVERT} without {', '.join(named)} trains in BF16"
    if context.platform == "cpu" and not emulated:
        hint = f"{_EMULATE}: true computes as if, and " if named == ["quantize.linear.float8"] else ""
        yield values.problem(_CONVERT, f"there is no GPU here; {hint}{instead}")
    elif not emulated and (unable := sorted(arch for arch in archs if context.platform != "cpu" and not can_fp8(arch))):
        yield values.problem(_CONVERT, f"{', '.join(unable)} cannot compute in FP8; {instead}")
    if emulated and _compiles_model(values):
        yield values.problem(_EMULATE, "cannot be combined with compile.enable")
    recipe, gather = "quantize.linear.float8.recipe_name", "quantize.linear.float8.enable_fsdp_float8_all_gather"
    if values[recipe] and values[recipe] != "tensorwise" and values[gather]:
        yield values.problem(gather, f"cannot be combined with recipe_name: {values[recipe]}")
    scale = "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
    if values[scale] and not values[gather]:
        yield values.problem(scale, "has no effect without enable_fsdp_float8_all_gather", "notice")
    for key in (_PP, _CP):
        if "quantize.grouped_mm.float8" in named and values.size(key) > 1:
            yield values.problem(key, "cannot be combined with the converter quantize.grouped_mm.float8")
    if "quantize.linear.mx" in named and values.size(_TP) > 1 and _compiles_model(values):
        yield values.problem(_TP, "cannot be combined with the converter quantize.linear.mx and compile.enable")


def _compiles_model(values: Values) -> bool:
    return bool(values["compile.enable"]) and "model" in (values["compile.components"] or ())


def features(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What parts of the engine need of each other, and of the place."""
    fields = fields_of(values)
    attention = fields.get("attn_type", "sdpa")
    if values.size(_CP) > 1:
        if context.platform == "cpu":
            yield values.problem(_CP, "the CPU has no attention for it; 1 is what works")
        if values["model.name"] == "gpt_oss":
            yield values.problem(_CP, "GPT-OSS cannot be split along the sequence yet")
        elif attention != "sdpa":
            key = _set(values, "model.attn_type")
            yield values.problem(key, f"context parallelism needs attn_type: sdpa, and it is {attention}")
    if attention == "varlen" and context.platform == "cpu":
        yield values.problem(_set(values, "model.attn_type"), "varlen attention needs a GPU; sdpa does not")
    if values["parallelism.enable_async_tensor_parallel"] and values.size(_TP) > 1 and not _compiles_model(values):
        yield values.problem(
            "parallelism.enable_async_tensor_parallel", "needs compile.enable, and model in its components"
        )
    if values["optimizer.early_step_in_backward"] and values.size(_EP) > 1:
        yield values.problem("optimizer.early_step_in_backward", "cannot be combined with expert parallelism")
    mode, option = values["activation_checkpoint.mode"], str(values["activation_checkpoint.selective_ac_option"] or "2")
    if mode == "selective" and option != "op" and not option.isdigit():
        yield values.problem(
            "activation_checkpoint.selective_ac_option", f"{option!r} is neither op nor a number of layers"
        )
    if mode == "memory_budget" and not _compiles_model(values):
        yield values.problem("activation_checkpoint.mode", "memory_budget needs compile.enable")
    if values["fault_tolerance.enable"] and context.installed and "torchft-nightly" not in context.installed:
        yield values.problem("fault_tolerance.enable", "torchft is not installed")
    if values["compile.enable"] and context.platform == "cpu" and values.by_user("compile.enable"):
        yield values.problem("compile.enable", "compiling for a CPU takes minutes before the first step", "notice")


_OPTIMIZERS = ("Adam", "AdamW")


def schedule(values: Values, context: CheckContext) -> Iterator[Problem]:
    """The optimizer exists, and its rate has room to rise and fall."""
    if (name := values["optimizer.name"]) and name not in _OPTIMIZERS:
        yield values.problem("optimizer.name", f"there is no {name!r}{_suggestion(name, _OPTIMIZERS)}")
    warmup = values["lr_scheduler.warmup_steps"] or 0
    total = values["lr_scheduler.total_steps"] or values["training.steps"]
    if total and warmup > total and values.by_user("lr_scheduler.warmup_steps"):
        yield values.problem(
            "lr_scheduler.warmup_steps", f"{warmup} is more than {total} steps: all of them warm up", "notice"
        )
    for key in ("lr_scheduler.decay_ratio", "lr_scheduler.min_lr_factor"):
        if values[key] is not None and not 0 <= values[key] <= 1:
            yield values.problem(key, f"{values[key]} is not between 0 and 1")


# --- files --------------------------------------------------------------------------------------------------------


def files(values: Values, context: CheckContext) -> Iterator[Problem]:
    """What is to be read is there."""
    if values["checkpoint.keep_latest_k"] == 1:
        yield values.problem("checkpoint.keep_latest_k", "1 may be in the making; keep at least 2, or 0 for all")
    if context.platform is None:
        return
    load = values["checkpoint.initial_load_path"]
    if load and values["checkpoint.enable"] and "://" not in load and not Path(load).expanduser().is_dir():
        yield values.problem("checkpoint.initial_load_path", f"there is no folder {load}")
    if not values["training.mock_data"]:
        yield from _data(values)


_HUB_DATA = {"c4", "c4_validation"}
_CHECKOUT_DATA = {"c4_test"}


def _data(values: Values) -> Iterator[Problem]:
    """Text comes with its tokenizer; a name without a path is one of the engine's own datasets."""
    key = "model.tokenizer_path" if values["model.tokenizer_path"] else "model.hf_assets_path"
    yield from tokenizer_here(values, key)
    path, name = values["training.dataset_path"], values["training.dataset"]
    if path:
        if "://" not in path and not Path(path).expanduser().exists():
            yield values.problem("training.dataset_path", f"there is no {path}")
    elif name in _CHECKOUT_DATA:
        yield values.problem(
            "training.dataset",
            f"{name} is not part of the wheel: set training.dataset_path to text of your own, "
            "or training.mock_data: true for made-up tokens",
        )


_CHECKS: tuple[Check, ...] = (
    world_size,
    batch_size,
    heads,
    experts,
    sequence,
    pipeline,
    converters,
    features,
    schedule,
    files,
)
