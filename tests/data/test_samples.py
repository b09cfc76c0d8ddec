from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from primus_core.data.indexed import IndexedReader, IndexedWriter
from primus_core.data.samples import Samples
from primus_core.errors import UserError


@pytest.fixture
def reader(tmp_path: Path) -> IndexedReader:
    random = np.random.default_rng(0)
    lengths = random.integers(0, 40, 30)
    lengths[3] = 0
    with IndexedWriter(tmp_path / "tokens", "uint16") as writer:
        writer.add(random.integers(0, 60000, lengths.sum()), lengths)
    return IndexedReader(tmp_path / "tokens")


def test_one_epoch_has_each_token_once(reader: IndexedReader) -> None:
    samples = Samples(reader, 7)
    cut = np.sort(np.concatenate([samples[number][:-1] for number in range(len(samples))]))
    everything = np.sort(reader.tokens)
    assert len(cut) >= len(everything) - 8
    assert set(cut.tolist()) <= set(everything.tolist())


def test_seeds_order(reader: IndexedReader) -> None:
    first, again, other = (Samples(reader, 16, 50, seed) for seed in (1, 1, 2))
    assert (first[5] == again[5]).all()
    assert (first[5] != other[5]).any()


def test_too_few_tokens(reader: IndexedReader) -> None:
    with pytest.raises(UserError, match="too few for one sample of 100000"):
        Samples(reader, 100_000)


@pytest.mark.parametrize("length", [7, 16, 100])
@pytest.mark.parametrize("count", [None, 5, 50, 57, 200, 1000])
def test_the_order_is_that_of_megatron(reader: IndexedReader, tmp_path: Path, length: int, count: int | None) -> None:
    gpt_dataset = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    prefix = str(tmp_path / "tokens")
    config = gpt_dataset.GPTDatasetConfig(
        random_seed=77,
        sequence_length=length,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=SimpleNamespace(eod=0, pad=-1, vocab_size=60000, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    documents = np.arange(len(reader.lengths), dtype=np.int32)
    theirs = gpt_dataset.GPTDataset(IndexedDataset(prefix), prefix, documents, count, Split.train, config)
    ours = Samples(reader, length, count, 77)
    assert len(ours) == len(theirs)
    for number in range(len(ours)):
        assert (ours[number][:-1] == theirs[number]["tokens"].numpy()).all()
        assert (ours[number][1:] == theirs[number]["labels"].numpy()).all()
