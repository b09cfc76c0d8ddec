"""Megatron's distributed checkpoints (``torch_dist``), read and written tensor by tensor without the engine's model.

A tensor of all layers has them as its first axis, and all experts as the next one; where layers differ in kind, the
number of the layer stands in the key instead.
"""

from __future__ import annotations

import io
import json
import pickle
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import BytesIOWriteData, SavePlan, TensorWriteData, WriteItem, WriteItemType

from primus_core.convert.distributed import damaged, read_metadata
from primus_core.errors import UserError

_LAYERS = "decoder.layers."
_OF_TRAINING = ("optimizer.", "chained_", "rng_state", "rerun_state")
_COMMON = "common_state/shard_0_1"


def address(name: str, layer: int | None, expert: int | None, stacked: bool) -> tuple[str, tuple[int, ...]]:
    """The key of a tensor, and its place on the axes in front of its own."""
    if layer is None:
        return name, ()
    place = () if expert is None else (expert,)
    return (_LAYERS + name, (layer, *place)) if stacked else (f"{_LAYERS}{layer}.{name}", place)


class Checkpoint:
    """One to read; ``keys`` are those of the model's tensors.

    Raises ``UserError`` where a file is damaged or holds more than data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metadata = read_metadata(folder)
        self.common = self._read_common()
        self.keys = {
            key
            for key, item in self._metadata.state_dict_metadata.items()
            if isinstance(item, TensorStorageMetadata) and not key.startswith(_OF_TRAINING)
        }
        self.stacked = not any(key.startswith(f"{_LAYERS}0.") for key in self.keys)
        self._places: dict[str, list[tuple[ChunkStorageMetadata, Any]]] = {}
        for index, info in self._metadata.storage_data.items():
            item = self._metadata.state_dict_metadata.get(index.fqn)
            if isinstance(item, TensorStorageMetadata):
                offsets = tuple(index.offset or (0,) * len(item.size))
                chunk = next(each for each in item.chunks if tuple(each.offsets) == offsets)
                self._places.setdefault(index.fqn, []).append((chunk, info))

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._metadata.state_dict_metadata[key].size)

    def dtype(self, key: str) -> torch.dtype:
        return self._metadata.state_dict_metadata[key].properties.dtype  # type: ignore[no-any-return]

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """The tensor at a place of the first axes."""
        shape = self.shape(key)[len(place) :]
        tensor = torch.empty(shape, dtype=self.dtype(key))
        filled = 0
        for chunk, info in self._places[key]:
            starts, ends = chunk.offsets[: len(place)], [o + s for o, s in zip(chunk.offsets, chunk.sizes, strict=True)]
            if not all(start <= at < end for start, at, end in zip(starts, place, ends, strict=False)):
                continue
            part = self._load(info)
            if part.shape != chunk.sizes:
                raise UserError(f"{self.folder}: {key} is damaged: a part has the shape {tuple(part.shape)}")
            part = part[tuple(at - start for start, at in zip(starts, place, strict=True))]
            area = tuple(
                slice(o, o + s) for o, s in zip(chunk.offsets[len(place) :], chunk.sizes[len(place) :], strict=True)
            )
            tensor[area] = part
            filled += part.numel()
        if filled != tensor.numel():
            raise UserError(f"{self.folder}: {key} is damaged: {filled:,} of {tensor.numel():,} numbers are there")
        return tensor

    def _load(self, info: Any) -> Any:
        path = self.folder / info.relative_path
        try:
            with path.open("rb") as file:
                file.seek(info.offset)
                content = file.read(info.length)
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
            raise UserError(f"{path} {damaged(error)}") from error

    def _read_common(self) -> dict[str, Any]:
        """What is no tensor: the arguments that the run had, among others. Empty where there is none."""
        from megatron.core.safe_globals import SAFE_GLOBALS

        with torch.serialization.safe_globals(SAFE_GLOBALS):
            if (file := self.folder / "common.pt").exists():
                try:
                    content = torch.load(file, map_location="cpu", weights_only=True)
                except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
                    raise UserError(f"{file} {damaged(error)}") from error
                return dict(content)
            for index, info in self._metadata.storage_data.items():
                if index.fqn == _COMMON:
                    content = self._load(info)
                    return dict(content[0] if isinstance(content, list) else content)
        return {}


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor to write at a place of the first axes, whose lengths are ``axes``."""

    key: str
    place: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]


def write(folder: Path, pieces: Iterable[Piece], arguments: Mapping[str, Any]) -> None:
    """A released model in ``folder``, as the engine's ``load`` and ``pretrained_checkpoint`` take it.

    Tensors are made one by one, when it is their turn.
    """
    target = folder / "release"
    planner = _Planner(list(pieces), _common(arguments))
    writer = checkpoint.FileSystemWriter(str(target), sync_files=False)
    checkpoint.save({}, storage_writer=writer, planner=planner, no_dist=True)
    (target / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    (folder / "latest_checkpointed_iteration.txt").write_text("release")


def _common(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"args": Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 0}


class _Planner(DefaultSavePlanner):
    """Plans pieces instead of a state dictionary, and makes each when the writer asks for it."""

    def __init__(self, pieces: list[Piece], common: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = {_index(piece): piece for piece in pieces}
        self._objects = {_COMMON: [dict(common)], **{key: [None] for key in _extra_states(pieces)}}

    def create_local_plan(self) -> SavePlan:
        objects = [
            WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO, bytes_io_data=BytesIOWriteData(len(_saved(value))))
            for key, value in self._objects.items()
        ]
        self.plan = SavePlan([*objects, *map(_item, self._pieces.values())])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type is WriteItemType.BYTE_IO:
            return io.BytesIO(_saved(self._objects[write_item.index.fqn]))
        piece = self._pieces[MetadataIndex(write_item.index.fqn, write_item.index.offset)]
        return piece.make().reshape(*(1 for _ in piece.axes), *piece.shape).contiguous()


def _index(piece: Piece) -> MetadataIndex:
    return MetadataIndex(piece.key, torch.Size((*piece.place, *(0 for _ in piece.shape))))


def _item(piece: Piece) -> WriteItem:
    index = _index(piece)
    assert index.offset is not None
    chunk = ChunkStorageMetadata(index.offset, torch.Size((*(1 for _ in piece.axes), *piece.shape)))
    data = TensorWriteData(chunk, TensorProperties(dtype=piece.dtype), torch.Size((*piece.axes, *piece.shape)))
    return WriteItem(index, WriteItemType.SHARD, tensor_data=data)


def _extra_states(pieces: Iterable[Piece]) -> Iterable[str]:
    """The engine wants an object for each linear layer and norm, empty unless it computes in 8 bits."""
    states = {}
    for piece in pieces:
        if not piece.key.endswith((".weight", ".layer_norm_weight")):
            continue
        module = piece.key.rpartition(".")[0]
        modules = [module]
        if module.endswith("self_attention.linear_proj"):
            modules.append(module.removesuffix("linear_proj") + "core_attention")
        place = ".".join(map(str, piece.place)) or "0"
        axes = ".".join(map(str, piece.axes)) or "1"
        states |= {f"{each}._extra_state/shard_{place}_{axes}": None for each in modules}
    return states


def _saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
