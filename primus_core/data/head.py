"""The head of a token index (``PREFIX.idx``, see ``primus_core.data.indexed``). Imports nothing heavy."""

from __future__ import annotations

import struct
from pathlib import Path

from primus_core.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def beside(prefix: Path, suffix: str) -> Path:
    """``PREFIX`` with something appended, dots in its name kept."""
    return prefix.with_name(prefix.name + suffix)


def look(prefix: Path) -> tuple[int, int, int]:
    """What the head of an index says: the code of the dtype, and the numbers of sequences and of boundaries.

    Raises ``UserError`` for files that are missing, of another format, or cut off.
    """
    idx_path = beside(prefix, ".idx")
    for path in (beside(prefix, ".bin"), idx_path):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    with idx_path.open("rb") as file:
        raw = file.read(HEADER.size)
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise UserError(f"{idx_path}: not an index of tokens (MMIDIDX)")
    _, version, code, sequences, boundaries = HEADER.unpack(raw)
    if version != 1 or code not in DTYPES:
        raise UserError(f"{idx_path}: version {version}, dtype code {code}: this reader knows version 1, codes 1 to 8")
    if idx_path.stat().st_size < HEADER.size + 12 * sequences + 8 * boundaries:
        raise UserError(f"{idx_path}: cut off: {sequences} sequences are announced")
    return int(code), int(sequences), int(boundaries)
