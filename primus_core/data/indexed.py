"""Token files in the indexed format of Megatron (``MMIDIDX``, version 1): ``PREFIX.bin`` and ``PREFIX.idx``.

``PREFIX.bin`` holds the tokens. The index, little endian: magic (9 bytes), version (uint64), dtype code (uint8),
number of sequences and of document boundaries (uint64 each), length of each sequence in tokens (int32), its place in
the ``.bin`` in bytes (int64), and the boundaries of documents as sequence numbers, from 0 (int64). Here each document
is one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.data.head import DTYPES, HEADER, MAGIC, beside, look
from primus_core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CODES = {name: code for code, name in DTYPES.items()}


def token_dtype(vocab_size: int) -> str:
    """The dtype that Megatron's own tool takes for this vocabulary."""
    return "uint16" if vocab_size < 65500 else "int32"


class IndexedWriter(AbstractContextManager["IndexedWriter"]):
    """Writes documents of tokens; the index is written on a clean exit, so a file with an index is complete."""

    def __init__(self, prefix: Path, dtype: str) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self.documents = 0
        self.tokens = 0
        self._lengths: list[NDArray[np.int32]] = []
        self._bin = beside(prefix, ".bin").open("wb")

    def add(self, tokens: NDArray[Any], lengths: NDArray[Any]) -> None:
        """Append documents: ``tokens`` (sum of lengths,) laid end to end, ``lengths`` (documents,)."""
        import numpy as np

        if int(lengths.sum()) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens for lengths that sum to {int(lengths.sum())}")
        self._bin.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._lengths.append(lengths.astype(np.int32))
        self.documents += len(lengths)
        self.tokens += len(tokens)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import numpy as np

        self._bin.close()
        if kind is not None:
            return
        lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        pointers = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
        pointers *= np.dtype(self.dtype).itemsize
        with beside(self.prefix, ".idx").open("wb") as idx:
            idx.write(HEADER.pack(MAGIC, 1, CODES[self.dtype], len(lengths), len(lengths) + 1))
            for array in (lengths, pointers, np.arange(len(lengths) + 1, dtype=np.int64)):
                idx.write(array.tobytes())


class IndexedReader:
    """Reads an indexed file through memory maps: ``len()`` documents, ``reader[i]`` the tokens of one (length,).

    Raises ``UserError`` for files that are missing, of another format, or cut off.
    """

    def __init__(self, prefix: Path) -> None:
        import numpy as np

        bin_path, idx_path = beside(prefix, ".bin"), beside(prefix, ".idx")
        code, sequences, boundaries = look(prefix)
        self.dtype = DTYPES[code]
        self.prefix = prefix
        index = np.memmap(idx_path, mode="r")
        self.lengths: NDArray[np.int32] = np.frombuffer(index, np.int32, sequences, HEADER.size)
        at = HEADER.size + self.lengths.nbytes
        self._pointers: NDArray[np.int64] = np.frombuffer(index, np.int64, sequences, at)
        self._documents: NDArray[np.int64] = np.frombuffer(index, np.int64, boundaries, at + self._pointers.nbytes)
        self.tokens_total = int(self.lengths.sum(dtype=np.int64))
        if bin_path.stat().st_size != self.tokens_total * np.dtype(self.dtype).itemsize:
            raise UserError(
                f"{bin_path}: {bin_path.stat().st_size} bytes, but its index describes {self.tokens_total} tokens"
            )
        self.tokens: NDArray[Any] = (
            np.memmap(bin_path, self.dtype, "r") if self.tokens_total else np.empty(0, self.dtype)
        )

    def __len__(self) -> int:
        return max(len(self._documents) - 1, 0)

    def __getitem__(self, document: int) -> NDArray[Any]:
        if not -len(self) <= document < len(self):
            raise IndexError(document)
        document %= len(self)
        first, last = (int(at) for at in self._documents[document : document + 2])
        if first == last:
            return self.tokens[:0]
        start = int(self._pointers[first]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[first:last].sum())]

    def sequence(self, number: int) -> NDArray[Any]:
        """The tokens of a sequence, of which a document has one or more."""
        start = int(self._pointers[number]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[number])]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))
