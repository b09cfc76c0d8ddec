"""A model and its tokenizer, loaded. Imported in the work process only."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from primus_core.errors import EnvironmentFault, UserError
from primus_eval.orders import ModelOrder

# Code beside a model is copied before it is imported: into a folder that ends with this process.
_MODULES = tempfile.TemporaryDirectory(prefix="primus-modules-")
os.environ.setdefault("HF_MODULES_CACHE", _MODULES.name)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore", category=SyntaxWarning)  # of libraries, when they are compiled
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Any
    tokenizer: Any | None
    missing: list[str]
    extra: list[str]
    mismatched: list[str]


def load(order: ModelOrder, *, tokenizer: bool = True) -> Loaded:
    """Raises ``UserError`` for files that do not belong together, ``EnvironmentFault`` for what is missing here."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = _config(order)
    words = load_tokenizer(order.tokenizer, config.vocab_size) if tokenizer else _own_tokenizer(order, config)
    dtype = getattr(torch, order.dtype) if order.dtype else "auto"
    device = order.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            order.model,
            config=config,
            dtype=dtype,
            trust_remote_code=order.trust,
            output_loading_info=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
        )
        model = model.to(device).eval()
    except ImportError as error:
        raise EnvironmentFault(f"{order.model}: {_first_line(error)}") from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        _raise_if_memory(error)
        raise UserError(f"{order.model}: the weights cannot be read: {_first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.startswith("safetensors"):
            raise UserError(f"{order.model}: the weights are damaged: {_first_line(error)}") from error
        raise
    mismatched = [f"{name}: {[*is_]}, expected {[*wanted]}" for name, is_, wanted in info["mismatched_keys"]]
    return Loaded(model, words, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]), mismatched)


def require_complete(loaded: Loaded, folder: str) -> None:
    """Raise ``UserError`` where weights are missing: what the model said would be noise."""
    if wrong := [*loaded.missing, *loaded.mismatched]:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{folder}: weights are missing or of another shape: {wrong[0]}{more}; primus verify names all")


def load_tokenizer(folder: str, vocabulary: int) -> Any:
    """The tokenizer of a folder. Raises ``UserError`` if there is none, or if it has more tokens than the model."""
    if not (files := [*Path(folder).glob("tokenizer*"), *Path(folder).glob("vocab.*")]):
        raise UserError(f"{folder}: no tokenizer there; name the one that the model was trained with: --tokenizer DIR")
    try:
        words = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever damaged files lead to, in three libraries
        raise UserError(f"{folder}: the tokenizer ({files[0].name}) cannot be read: {_first_line(error)}") from error
    if len(words) > vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {len(words):,} tokens and the model {vocabulary:,}: it was trained with "
            "another one; name that: --tokenizer DIR"
        )
    return words


def out_of_memory(order: ModelOrder) -> EnvironmentFault:
    """What to do about it, as an error."""
    return EnvironmentFault(
        f"{order.model}: out of memory; a smaller --batch-size (1 or auto), --max-length 1024, --dtype bfloat16 help"
    )


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in str(error).lower()


def _raise_if_memory(error: BaseException) -> None:
    if is_out_of_memory(error):
        raise EnvironmentFault(
            f"out of memory: {_first_line(error)}; --dtype bfloat16 halves what is needed"
        ) from error


def _own_tokenizer(order: ModelOrder, config: Any) -> Any | None:
    """The tokenizer where there is one."""
    folder = Path(order.tokenizer)
    there = any(folder.glob("tokenizer*")) or any(folder.glob("vocab.*"))
    return load_tokenizer(order.tokenizer, config.vocab_size) if there else None


def _config(order: ModelOrder) -> Any:
    try:
        return AutoConfig.from_pretrained(order.model, trust_remote_code=order.trust, local_files_only=True)
    except ImportError as error:
        raise EnvironmentFault(f"{order.model}: {_first_line(error)}") from error
    except (ValueError, KeyError, OSError, TypeError) as first:
        if not _with_fla(order):
            raise UserError(f"{order.model}: {_explained(first, order)}") from first
    return AutoConfig.from_pretrained(order.model, local_files_only=True)


def _with_fla(order: ModelOrder) -> bool:
    """Flash Linear Attention registers its models with transformers when it is imported."""
    try:
        import fla.models  # noqa: F401
    except ImportError:
        return False
    try:
        AutoConfig.from_pretrained(order.model, local_files_only=True)
    except (ValueError, KeyError, OSError, TypeError):
        return False
    return True


def _explained(error: BaseException, order: ModelOrder) -> str:
    text = _first_line(error)
    if "model type" not in text and "model_type" not in text:
        return f"config.json cannot be used: {text}"
    return (
        f"transformers {transformers.__version__} does not know this model type; models of Flash Linear Attention need "
        "it installed (pip install flash-linear-attention); others need the code that primus convert lays beside them, "
        "so convert the checkpoint again"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
