"""Safetensors files written one tensor at a time: memory holds no more than the largest of them.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from primus_core.convert.order import DTYPES

BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to come: its name, its type as the format writes it, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * BYTES[self.dtype]


def write(folder: Path, entries: Sequence[Entry], data: Iterable[memoryview], shard_size: int) -> list[Path]:
    """Write ``data``, the bytes of each entry in this order, into files of at most ``shard_size`` bytes.

    One file is ``model.safetensors``; several have a number each, and ``model.safetensors.index.json`` says what
    is where. A tensor larger than a file may be gets one of its own.
    """
    shards = list(_shards(entries, shard_size))
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    source = iter(data)
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            _write(file, shard, source)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(entry.size for entry in entries)},
            "weight_map": {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in names]


def main_dtype(entries: Iterable[Entry]) -> str:
    """The type of most numbers, as torch names it."""
    totals: dict[str, int] = {}
    for entry in entries:
        totals[entry.dtype] = totals.get(entry.dtype, 0) + math.prod(entry.shape)
    names = {text: name for name, text in DTYPES.items()}
    return names.get(max(totals, key=totals.__getitem__), "float32")


def _shards(entries: Iterable[Entry], limit: int) -> Iterator[list[Entry]]:
    shard: list[Entry] = []
    size = 0
    for entry in entries:
        if shard and size + entry.size > limit:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.size
    if shard:
        yield shard


def _write(file: IO[bytes], entries: Iterable[Entry], data: Iterator[memoryview]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for entry in entries:
        content = next(data)
        if content.nbytes != entry.size:
            raise ValueError(f"{entry.name}: {content.nbytes} bytes instead of {entry.size}")
        file.write(content)
