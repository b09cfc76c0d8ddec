"""What is wrong with values of fine-tuning. Light: neither torch nor the engine."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from primus_core.config.experiment import CheckContext
from primus_core.errors import Problem

if TYPE_CHECKING:
    from primus_core.config.values import Values

type Complain = Callable[[str, str], Problem]


def fine_tuning(values: Values, context: CheckContext) -> Iterator[Problem]:
    """Data and adapters of the stage ``posttrain``; in ``pretrain`` nothing of it would act."""
    if values.experiment.stage != "posttrain":
        if values["sft"]:
            yield values.problem("sft", "fine-tuning is `primus train posttrain`, with a module post_trainer")
        return
    yield from _data(values, context)
    yield from _packing(values)
    if values["lora.enabled"]:
        yield from _lora(values)


def _data(values: Values, context: CheckContext) -> Iterator[Problem]:
    from primus_megatron.posttrain.conversations import FORMATS  # not where nothing is fine-tuned

    layout = values["sft_conversation_format"]
    if layout is not None and layout not in FORMATS:
        close = get_close_matches(str(layout), FORMATS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(FORMATS)}"
        yield values.problem("sft_conversation_format", f"unknown format {layout!r}{hint}")
    if values["mock_data"]:
        yield values.problem("mock_data", "fine-tuning needs conversations: set it to false, and sft_dataset_name")
    if values["sft"]:
        yield values.problem("sft", "is Megatron's own way to fine-tune, which is not used: leave it out")
    if values["tokenizer_type"] in ("NullTokenizer", "SFTTokenizer"):
        yield values.problem("tokenizer_type", "fine-tuning needs HuggingFaceTokenizer")
    if not any(values[key] for key in ("train_data_path", "data_path", "sft_dataset_name")):
        yield values.problem("sft_dataset_name", "not set: give a file of JSON lines, or a dataset on the hub")
    if context.platform is None:
        return
    name = values["sft_dataset_name"]
    unused = values["train_data_path"] or values["data_path"]
    for key in ("train_data_path", "data_path", "valid_data_path", "test_data_path", "sft_dataset_name"):
        if key == "sft_dataset_name" and (unused or not _is_path(str(name))):
            continue
        for path in [values[key]] if isinstance(values[key], str) else values[key] or ():
            if not Path(path).expanduser().exists() and not glob.glob(str(path), recursive=True):  # noqa: PTH207
                yield values.problem(key, f"there is no file {path}")


def _is_path(name: str) -> bool:
    """Whether a dataset is meant as a file: names on the hub have at most one slash and no ending."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or bool(Path(name).suffix)


def _packing(values: Values) -> Iterator[Problem]:
    if values.size("context_parallel_size") > 1:
        yield values.problem("context_parallel_size", "fine-tuning works with 1 only")
    if not values["enable_packed_sequences"]:
        return
    if values.size("pipeline_model_parallel_size") > 1 and values.size("micro_batch_size") > 1:
        yield values.problem("micro_batch_size", "packed sequences in a pipeline need 1")
    if values["hybrid_layer_pattern"]:
        yield values.problem("enable_packed_sequences", "state-space layers would carry over from sample to sample")


def _lora(values: Values) -> Iterator[Problem]:
    targets = values["lora.target_modules"]
    if not targets:
        yield values.problem("lora.target_modules", "names no layers")
    dim = values["lora.dim"]
    if dim is not None and dim < 1:
        yield values.problem("lora.dim", f"{dim} is less than 1")
    if not 0 <= (values["lora.dropout"] or 0) < 1:
        yield values.problem("lora.dropout", f"{values['lora.dropout']} is not at least 0 and less than 1")
    for key in ("lora.lora_A_init_method", "lora.lora_B_init_method"):
        if (method := values[key]) not in (None, *_INIT):
            yield values.problem(key, f"{method!r} is not one of {', '.join(_INIT)}")
    for key in ("use_megatron_fsdp", "use_torch_fsdp2", "init_model_with_meta_device"):
        if values[key]:
            yield values.problem(key, "cannot be combined with LoRA")
    if values["ckpt_format"] not in (None, "torch_dist", "torch"):
        yield values.problem("ckpt_format", f"LoRA saves as torch_dist, not {values['ckpt_format']}")


_INIT = ("xavier", "kaiming", "normal", "zero")
