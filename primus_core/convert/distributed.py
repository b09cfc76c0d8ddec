"""The ``.metadata`` of PyTorch's distributed checkpoints: a pickle, of which only descriptions of tensors are taken."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from primus_core.errors import UserError

_DCP = "torch.distributed.checkpoint"
_DESCRIPTIONS = (
    *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties"),
    *("TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
)
_PLANS = ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_ALLOWED = {
    *((f"{_DCP}.metadata", name) for name in _DESCRIPTIONS),
    *((f"{_DCP}.planner", name) for name in _PLANS),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    *(("torch", name) for name in ("Size", "device", *_DTYPES)),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
}


def read_metadata(folder: Path) -> Any:
    """A ``torch.distributed.checkpoint.metadata.Metadata``. Needs torch.

    Raises ``UserError`` where it is damaged or asks for anything else than descriptions.
    """
    file = folder / ".metadata"
    try:
        with file.open("rb") as stream:
            return _Unpickler(stream).load()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except Exception as error:  # whatever a damaged pickle leads to
        raise UserError(f"{file} {damaged(error)}") from error


def damaged(error: BaseException) -> str:
    """What is said of a file that cannot be read safely."""
    return f"is damaged or holds more than data: {(str(error).splitlines() or [type(error).__name__])[0]}"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place there")
