"""Checkpoints to and from Hugging Face's format by the engine's own adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torchtitan.config import JobConfig

from primus_core.convert import safetensors
from primus_core.convert.distributed import damaged, read_metadata
from primus_core.convert.hugging_face import Tensors, read_config, write_config
from primus_core.convert.order import DTYPES, HF, Order, Report
from primus_core.errors import UserError
from primus_core.plugins.manager import PluginManager
from primus_torchtitan.v02.configs import DESCRIBED, hf_config
from primus_torchtitan.v02.job import build
from primus_torchtitan.v02.spec import train_spec

_OF_TRAINING = ("optimizer.", "lr_scheduler", "dataloader", "train_state")
_NAMES = {getattr(torch, name): text for name, text in (DTYPES | {"float64": "F64"}).items()}


@dataclass(frozen=True)
class _Model:
    """What a description of a model needs of a run."""

    config: Mapping[str, Any]
    model: str | None
    plugins: PluginManager

    def builder(self, model: str) -> Callable[..., Any] | None:
        found = self.plugins.models().get(("torchtitan", model))
        return found.load(found.record.builder) if found and found.record.builder else None


def convert(order: Order) -> Report:
    """Raises ``UserError`` for a source that cannot be read, or without an experiment: only that knows the model."""
    if order.config is None:
        raise UserError("a checkpoint of torchtitan does not say which model it is; name its experiment: --config FILE")
    job = build(JobConfig, order.config)
    spec = train_spec(_Model(order.config, order.model, PluginManager.load()), job)
    if spec.state_dict_adapter is None:
        raise UserError(f"model.name: torchtitan has no names of Hugging Face for {job.model.name}")
    args = spec.model_args[job.model.flavor]
    context = max(args.max_seq_len, job.training.seq_len)
    args.update_from_config(job)
    args.max_seq_len = context
    with torch.device("meta"):
        weights = spec.model_cls(args).state_dict()
    adapter = spec.state_dict_adapter(args, None)
    return _export(order, job, args, weights, adapter) if order.format == HF else _import(order, weights, adapter)


def _export(order: Order, job: JobConfig, args: Any, weights: dict[str, torch.Tensor], adapter: Any) -> Report:
    metadata = read_metadata(order.source)
    there = {
        name: tuple(item.size)
        for name, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata) and not name.startswith(_OF_TRAINING)
    }
    report = _compared(_shapes(weights), there)
    if not report.complete:
        return report
    config = _config(job, args, weights)
    types = {name: metadata.state_dict_metadata[name].properties.dtype for name in weights}
    state = {name: torch.empty(each.shape, dtype=types[name]) for name, each in weights.items()}
    try:
        dcp.load(state, storage_reader=_Reader(order.source, metadata), no_dist=True)
    except CheckpointException as error:  # whatever a damaged file leads to
        raise UserError(f"{order.source} {damaged(next(iter(error.failures.values()))[0])}") from error
    result: dict[str, torch.Tensor] = adapter.to_hf(state)
    if order.dtype:
        result = {name: each.to(getattr(torch, order.dtype)) for name, each in result.items()}
    entries = [safetensors.Entry(name, _NAMES[each.dtype], tuple(each.shape)) for name, each in result.items()]
    safetensors.write(order.output, entries, map(_bytes, result.values()), order.shard_size)
    write_config(order.output, config, order.dtype or safetensors.main_dtype(entries))
    return _counted(report, result.values())


def _import(order: Order, weights: dict[str, torch.Tensor], adapter: Any) -> Report:
    read_config(order.source)
    source = Tensors(order.source)
    expected = _shapes(adapter.to_hf(weights))
    there = {name: source.shape(name) for name in source.names if not name.endswith("rotary_emb.inv_freq")}
    report = _compared(expected, there)
    if not report.complete:
        return report
    state: dict[str, torch.Tensor] = adapter.from_hf({name: source.read(name) for name in expected})
    if order.dtype:
        state = {name: each.to(getattr(torch, order.dtype)) for name, each in state.items()}
    target = order.output / "step-0"
    dcp.save(state, storage_writer=dcp.FileSystemWriter(str(target), sync_files=False), no_dist=True)
    return _counted(
        _compared({name: tuple(each.shape) for name, each in weights.items()}, _shapes(state)), state.values()
    )


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in state.items()}


def _compared(expected: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> Report:
    return Report(
        missing=sorted(expected.keys() - there.keys()),
        extra=sorted(there.keys() - expected.keys()),
        mismatched=[
            f"{name}: {[*there[name]]}, expected {[*shape]}"
            for name, shape in expected.items()
            if there.get(name, shape) != shape
        ],
    )


def _counted(report: Report, tensors: Iterable[torch.Tensor]) -> Report:
    sizes = [math.prod(each.shape) for each in tensors]
    report.tensors, report.parameters = len(sizes), sum(sizes)
    return report


def _config(job: JobConfig, args: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What the flavor says; for models that are not known so well the one beside the tokenizer."""
    assets = Path(job.model.hf_assets_path)
    if job.model.name not in DESCRIBED and (assets / "config.json").is_file():
        return read_config(assets)
    return hf_config(job.model.name, args, weights)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """With metadata that was read safely."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(str(folder))
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata
