"""Tokens of an indexed file as samples of one length, in the order that Megatron trains on them.

Documents are shuffled and laid end to end, that stream is cut into samples, and the samples are shuffled: all by one
seed. So two engines that take sample after sample see the same tokens in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_core.data.indexed import IndexedReader
from primus_core.errors import UserError

if TYPE_CHECKING:
    from numpy.random import RandomState
    from numpy.typing import NDArray

_SEPARATE_BELOW = 0.8


class Samples:
    """At least ``count`` samples; ``samples[i]`` has ``length + 1`` tokens (int64), of which neighbours share one.

    As in Megatron's ``GPTDataset``, documents are repeated until there are enough samples, and an epoch that is used
    only in small part is shuffled by itself, after the others. Without ``count`` there is one epoch.
    """

    def __init__(self, reader: IndexedReader, length: int, count: int | None = None, seed: int = 1234) -> None:
        import numpy as np

        tokens = reader.tokens_total
        if tokens <= length:
            raise UserError(f"{reader.prefix}: {tokens} tokens are too few for one sample of {length}")
        epochs = 1 if count is None else max(1, -(-(count * length + 1) // tokens))
        total = (epochs * tokens - 1) // length
        before = ((epochs - 1) * tokens - 1) // length  # samples of all epochs but the last
        last_is_separate = epochs > 1 and (count or 0) - before < int(_SEPARATE_BELOW * ((tokens - 1) // length))
        random = np.random.RandomState(seed)
        documents = len(reader.lengths)
        if last_is_separate:
            parts = [_shuffled_documents(documents, number, random) for number in (epochs - 1, 1)]
            self._samples = np.concatenate([_shuffled(0, before, random), _shuffled(before, total, random)])
        else:
            parts = [_shuffled_documents(documents, epochs, random)]
            self._samples = _shuffled(0, total, random)
        self._documents: NDArray[Any] = np.concatenate(parts)
        self._ends = np.cumsum(reader.lengths[self._documents], dtype=np.int64)
        self._reader = reader
        self.length = length

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> NDArray[Any]:
        import numpy as np

        start = int(self._samples[index]) * self.length
        at = int(np.searchsorted(self._ends, start, side="right"))
        missing = self.length + 1
        pieces = []
        while missing:
            document = int(self._documents[at])
            skipped = start - int(self._ends[at]) + int(self._reader.lengths[document])
            piece = self._reader.sequence(document)[skipped : skipped + missing]
            pieces.append(piece)
            missing -= len(piece)
            start += len(piece)
            at += 1
        return np.concatenate(pieces, dtype=np.int64)


def _shuffled_documents(documents: int, epochs: int, random: RandomState) -> NDArray[Any]:
    import numpy as np

    order = np.tile(np.arange(documents, dtype=np.int32), epochs)
    random.shuffle(order)
    return order


def _shuffled(start: int, end: int, random: RandomState) -> NDArray[Any]:
    import numpy as np

    order = np.arange(start, end, dtype=np.int64)
    random.shuffle(order)
    return order
