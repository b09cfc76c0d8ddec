"""From the parameters of a run to the arguments of Megatron."""

from __future__ import annotations

import argparse
import importlib.util
import linecache
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.errors import UserError
from primus_megatron.checkpoints import latest

if TYPE_CHECKING:
    from primus_core.run.context import Run

DEFAULTS: Mapping[str, Any] = {"dist_ckpt_optim_fully_reshardable": True}
"""Other than the engine's own: a checkpoint can be loaded with other parallel sizes."""

PLATFORMS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"distributed_backend": "gloo", "distrib_optim_fully_reshardable_mem_efficient": True},
}
"""What a platform decides, whatever the user says."""

WITHOUT_TE: Mapping[str, Any] = {
    "transformer_impl": "local",
    "no_persist_layer_norm": True,
    "memory_efficient_layer_norm": False,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "tp_comm_overlap": False,
    "cross_entropy_fusion_impl": "native",
}
"""How the engine computes the same without Transformer Engine."""

OF_CONFIG = frozenset({"original_max_position_embeddings"})
"""Not arguments, but fields of the model's configuration, which the engine fills from the arguments' namespace."""

NEED_TE: tuple[str, ...] = ("fp8", "fp4", "fp8_param_gather", "fp4_param_gather")
"""What would compute something else without Transformer Engine."""


def has_transformer_engine() -> bool:
    return importlib.util.find_spec("transformer_engine") is not None


def parse(run: Run) -> argparse.Namespace:
    """Megatron's arguments for this rank, checked by Megatron itself.

    Keys that Megatron does not know are left out: the schema tells what becomes of them. Raises ``UserError`` with
    Megatron's own words where it refuses the values.
    """
    from megatron.training.arguments import add_megatron_arguments, validate_args

    values = {key: value for key, value in run.config.items() if value is not None}
    values = {**DEFAULTS, **values, **PLATFORMS.get(run.platform, {})}
    if not has_transformer_engine():
        values = _without_transformer_engine(values, run)
    values |= tokenizer(values) | checkpoints(values, run.folder, bool(run.recovery.restarts)) | trackers(values, run)

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    parser.set_defaults(**_converted(parser, values))
    args = parser.parse_args([])
    args.rank, args.world_size, args.local_rank = run.place.rank, run.place.world_size, run.place.local_rank
    for key in OF_CONFIG & values.keys():
        setattr(args, key, values[key])
    args._is_global_batch_size_explicitly_specified = args.global_batch_size is not None
    try:
        return validate_args(args)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UserError(f"Megatron refuses these values: {_reason(error)}") from error


def _without_transformer_engine(values: Mapping[str, Any], run: Run) -> dict[str, Any]:
    needed = [f"{key}: {values[key]}" for key in NEED_TE if values.get(key)]
    if needed:
        raise UserError(f"Transformer Engine is not installed, and this needs it: {', '.join(needed)}")
    off = [key for key, value in WITHOUT_TE.items() if value is False and values.get(key)]
    run.note(
        "Transformer Engine is not installed: Megatron's local layers with PyTorch's attention"
        + (f"; off: {', '.join(off)}" if off else "")
    )
    masked = bool(values.get("reset_attention_mask"))
    return {**values, **WITHOUT_TE, "create_attention_mask_in_dataloader": masked}


def tokenizer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Which of Megatron's tokenizers: of a local file or folder, of the hub, or none with mock data."""
    kind, model = values.get("tokenizer_type"), values.get("tokenizer_model")
    if values.get("mock_data") and not (model and Path(model).exists()):
        size = values.get("vocab_size") or values.get("padded_vocab_size")
        if size is None:
            raise UserError(f"mock_data: vocab_size must be given, since the tokenizer {model} is not on this machine")
        return {"tokenizer_type": "NullTokenizer", "vocab_size": size}
    if model and (kind is None or (kind.endswith("Tokenizer") and kind not in _KINDS)):
        kind = "HuggingFaceTokenizer"
    if kind == "HuggingFaceTokenizer" and model and Path(model).name == "tokenizer.json":
        model = str(Path(model).parent)
    return {key: value for key, value in {"tokenizer_type": kind, "tokenizer_model": model}.items() if value}


_KINDS = ("HuggingFaceTokenizer", "NullTokenizer", "TikTokenizer", "SentencePieceTokenizer", "SFTTokenizer")


def checkpoints(values: Mapping[str, Any], folder: Path, again: bool = False) -> dict[str, Any]:
    """Where to save and what to load.

    A relative ``save`` lies in the folder of the experiment, without one nothing is saved. A relative ``load`` is
    looked for from here first, then there. With ``auto_continue_train``, or when the run starts ``again``, what was
    saved last goes before ``load``.
    """
    paths: dict[str, Any] = {}
    if save := values.get("save"):
        paths["save"] = str(folder / save)
    if load := values.get("load"):
        paths["load"] = str(load if Path(load).exists() else folder / load)
    if save and (again or values.get("auto_continue_train", True)) and latest(paths["save"]) is not None:
        paths |= {"load": paths["save"], "finetune": False, "pretrained_checkpoint": None, "ckpt_step": None}
        paths |= {f"no_load_{part}": values.get(f"no_save_{part}") for part in ("optim", "rng")}
    return paths


def trackers(values: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Where the engine's own curves go: nowhere unless ``disable_tensorboard`` or ``disable_wandb`` is false."""
    board, biases = (not values.get(f"disable_{name}", True) for name in ("tensorboard", "wandb"))
    return {
        "tensorboard_dir": values.get("tensorboard_dir", str(run.attempt / "tensorboard")) if board else None,
        "wandb_project": values.get("wandb_project", "") if biases else "",
        "wandb_exp_name": values.get("wandb_exp_name", run.name),
        "wandb_save_dir": values.get("wandb_save_dir", str(run.attempt / "wandb")),
    }


def _converted(parser: argparse.ArgumentParser, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the parser knows, as it would have read them from a command line."""
    actions = {action.dest: action for action in parser._actions if action.dest != "help"}
    return {key: _convert(actions[key], value) for key, value in values.items() if key in actions}


def _convert(action: argparse.Action, value: Any) -> Any:
    if value is None:
        return None
    if action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 0):
        items = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
        return [_convert_one(action, item) for item in items]
    return _convert_one(action, value)


def _convert_one(action: argparse.Action, value: Any) -> Any:
    if action.type is None or isinstance(value, bool):
        return value
    if action.type in (int, float, str):
        return action.type(value)
    return action.type(value) if isinstance(value, str) else value


def _reason(error: BaseException) -> str:
    """The message of an error, or the line that raised it, since many assertions have none."""
    if str(error):
        return str(error)
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else ""
    return line.strip() or type(error).__name__
