"""What ``primus convert`` has this backend do, in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from primus_core.convert import safetensors as writer
from primus_core.convert.hugging_face import Tensors, read_config, write_config
from primus_core.convert.order import DTYPES, HF, Order, Report
from primus_core.errors import UserError
from primus_megatron.convert import dist, hybrid, settings
from primus_megatron.convert.families import EMBEDDING, OUTPUT, Family, Link, links
from primus_megatron.convert.transforms import fuse, split

_NAMES = {getattr(torch, name): text for name, text in (DTYPES | {"float64": "F64"}).items()}
_TYPES = {text: dtype for dtype, text in _NAMES.items()}


def convert(order: Order) -> Report:
    """Raises ``UserError`` for a source that cannot be read, or does not fit the experiment that was named."""
    return _export(order) if order.format == HF else _import(order)


# --- Megatron to Hugging Face -------------------------------------------------------------------------------------


def _export(order: Order) -> Report:
    source = dist.Checkpoint(order.source)
    arguments = _arguments(source, order)
    if arguments.get("hybrid_layer_pattern"):
        return _export_hybrid(order, source, arguments)
    family, config = settings.to_hf(arguments)
    sizes = settings.sizes(arguments)
    report, chosen, entries = Report(), list[tuple[Link, str, tuple[int, ...]]](), list[writer.Entry]()
    unused = set(source.keys)
    for link in links(family, settings.complete(arguments), sizes):
        found = (dist.address(name, link.layer, link.expert, source.stacked) for name in _names(link))
        known = [(key, place) for key, place in found if key in source.keys]
        if not known:
            report.missing.append(_named(link))
            continue
        key, place = known[0]
        unused.difference_update(key for key, _ in known)
        shape = source.shape(key)[len(place) :]
        if not _fits(link, shape):
            report.mismatched.append(f"{_named(link)}: {[*shape]}, expected {[*link.shape]}")
            continue
        dtype = order.dtype or _NAMES[source.dtype(key)]
        chosen.append((link, key, place))
        entries += [writer.Entry(name, DTYPES.get(dtype, dtype), shape) for name, shape in link.parts]
    report.extra += sorted(unused)
    if not report.complete:
        return report

    def data() -> Iterator[memoryview]:
        for link, key, place in chosen:
            tensor = source.read(key, place)[: link.shape[0]]
            for part in split(link, tensor, sizes):
                yield _bytes(part if order.dtype is None else part.to(getattr(torch, order.dtype)))

    _count(report, entries)
    writer.write(order.output, entries, data(), order.shard_size)
    write_config(order.output, config, order.dtype or writer.main_dtype(entries))
    return report


def _export_hybrid(order: Order, source: dist.Checkpoint, arguments: Mapping[str, Any]) -> Report:
    config, report = hybrid.config_of(arguments), Report()
    chosen = hybrid.choose(config, source, report)
    if not report.complete:
        return report
    types = [order.dtype or _NAMES[source.dtype(keys[0])] for _, keys in chosen]
    entries = [
        writer.Entry(target.name, DTYPES.get(dtype, dtype), target.shape)
        for (target, _), dtype in zip(chosen, types, strict=True)
    ]

    def data() -> Iterator[memoryview]:
        for (target, keys), entry in zip(chosen, entries, strict=True):
            yield _bytes(target.make([source.read(key, ()) for key in keys]).to(_TYPES[entry.dtype]))

    _count(report, entries)
    writer.write(order.output, entries, data(), order.shard_size)
    write_config(order.output, config, order.dtype or writer.main_dtype(entries))
    hybrid.lay_code(order.output, config, order.source.name)
    return report


def _arguments(source: dist.Checkpoint, order: Order) -> Mapping[str, Any]:
    """Of the run that saved the checkpoint; of the experiment where it did not write them down."""
    arguments = arguments_of(source, order.source, order.config)
    if source.common.get("args") is not None:
        _require_fit(arguments, order)
    return arguments


def arguments_of(source: dist.Checkpoint, path: Path, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments that a checkpoint holds, or those instead. Raises ``UserError`` where there are none."""
    args = source.common.get("args")
    if args is None and otherwise is None:
        raise UserError(f"{path} does not say which model it is; name its experiment: --config FILE")
    arguments = dict(otherwise or {}) if args is None else dict(vars(args))
    rows = source.shape(EMBEDDING)[0] if EMBEDDING in source.keys else 0
    known = arguments.get("vocab_size") or arguments.get("padded_vocab_size") or rows
    arguments["vocab_size"] = min(known, rows) if rows else known
    return arguments


def _fits(link: Link, shape: tuple[int, ...]) -> bool:
    """Embeddings may have more rows than the vocabulary: the engine pads them."""
    if link.name in (EMBEDDING, OUTPUT):
        return shape[0] >= link.shape[0] and shape[1:] == link.shape[1:]
    return shape == link.shape


def _names(link: Link) -> list[str]:
    return [link.name, link.also] if link.also else [link.name]


def _named(link: Link) -> str:
    if link.layer is None:
        return link.name
    expert = "" if link.expert is None else f", expert {link.expert}"
    return f"{link.name} of layer {link.layer}{expert}"


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())


# --- Hugging Face to Megatron -------------------------------------------------------------------------------------


def _import(order: Order) -> Report:
    family, arguments = settings.from_hf(read_config(order.source))
    _require_fit(arguments, order)
    sizes = settings.sizes(arguments)
    source = Tensors(order.source)
    report, unused = Report(), set(source.names)
    full = settings.complete(arguments)
    stacked = full["moe_layer_freq"] == 1 or not full["num_experts"]
    pieces, entries = list[dist.Piece](), list[writer.Entry]()
    for link in links(family, full, sizes):
        names = [name for name, _ in link.parts]
        unused.difference_update(names)
        if absent := [name for name in names if name not in source.names]:
            report.missing += absent
            continue
        wrong = [(name, source.shape(name), shape) for name, shape in link.parts if source.shape(name) != shape]
        if wrong:
            report.mismatched += [f"{name}: {[*is_]}, expected {[*expected]}" for name, is_, expected in wrong]
            continue
        dtype = getattr(torch, order.dtype) if order.dtype else _dtype(source, names[0])
        axes = _axes(link, full, stacked)
        make = partial(_fused, source, link, sizes, dtype)
        for name in _names(link):
            key, place = dist.address(name, link.layer, link.expert, stacked)
            pieces.append(dist.Piece(key, place, axes, link.shape, dtype, make))
        entries.append(writer.Entry(link.name, _NAMES[dtype], link.shape))
    report.extra += sorted(name for name in unused if not _derived(name, arguments))
    if report.complete:
        _count(report, entries)
        dist.write(order.output, pieces, arguments)
        _write_preset(order.output / "model.yaml", arguments, family)
    return report


def _axes(link: Link, full: Mapping[str, Any], stacked: bool) -> tuple[int, ...]:
    if link.layer is None:
        return ()
    experts = () if link.expert is None else (full["num_experts"],)
    return (full["num_layers"], *experts) if stacked else experts


def _fused(source: Tensors, link: Link, sizes: Mapping[str, int], dtype: torch.dtype) -> torch.Tensor:
    return fuse(link, [source.read(name).to(dtype) for name, _ in link.parts], sizes)


def _dtype(source: Tensors, name: str) -> torch.dtype:
    text = source.dtype(name)
    if text not in _TYPES:
        raise UserError(f"{name} is of type {text}; there are {', '.join(_TYPES)}")
    return _TYPES[text]


def _derived(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a tensor only repeats what is known otherwise."""
    tied = not arguments["untie_embeddings_and_output_weights"]
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def _write_preset(file: Path, arguments: Mapping[str, Any], family: Family) -> None:
    """The model as a preset, so that an experiment can name it: ``model: DIR/model.yaml``."""
    head = f"# {family.architecture}, as it was converted.\nextends: language_model.yaml\n\n"
    file.write_text(head + yaml.safe_dump(dict(arguments), sort_keys=False), encoding="utf-8")


# --- both ---------------------------------------------------------------------------------------------------------


def _require_fit(arguments: Mapping[str, Any], order: Order) -> None:
    if order.config is None:
        return
    if problems := list(settings.differences(arguments, order.config, order.origins)):
        raise UserError("\n".join(problems))


def _count(report: Report, entries: list[writer.Entry]) -> None:
    report.tensors = len(entries)
    report.parameters = sum(math.prod(entry.shape) for entry in entries)
