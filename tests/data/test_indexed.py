"""Token files: what is written is read back, and damage is told."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.data.indexed import IndexedReader, IndexedWriter, token_dtype
from primus_core.errors import UserError

documents = st.lists(st.lists(st.integers(0, 65499), max_size=20), max_size=20)


def write(prefix: Path, texts: list[list[int]], dtype: str = "uint16") -> None:
    with IndexedWriter(prefix, dtype) as writer:
        for tokens in texts:
            writer.add(np.array(tokens, dtype), np.array([len(tokens)]))


@given(documents, st.sampled_from(["uint16", "int32"]))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], dtype: str):
    prefix = tmp_path_factory.mktemp("indexed") / "a.b"
    write(prefix, texts, dtype)
    reader = IndexedReader(prefix)
    assert [tokens.tolist() for tokens in reader] == texts
    assert (len(reader), reader.tokens_total, reader.dtype) == (len(texts), sum(map(len, texts)), dtype)
    if texts:
        assert reader[-1].tolist() == texts[-1]
    with pytest.raises(IndexError):
        reader[len(texts)]


@given(documents, st.data())
def test_it_does_not_matter_how_documents_are_handed_over(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], data: st.DataObject
):
    folder = tmp_path_factory.mktemp("indexed")
    write(folder / "one", texts)
    with IndexedWriter(folder / "many", "uint16") as writer:
        while texts:
            some = data.draw(st.integers(1, len(texts)))
            writer.add(np.array([*chain(*texts[:some])], np.uint16), np.array([len(tokens) for tokens in texts[:some]]))
            texts = texts[some:]
    for suffix in (".bin", ".idx"):
        assert (folder / f"one{suffix}").read_bytes() == (folder / f"many{suffix}").read_bytes()


def test_no_index_after_an_error(tmp_path: Path):
    with (
        pytest.raises(ValueError, match="3 tokens for lengths that sum to 2"),
        IndexedWriter(tmp_path / "a", "uint16") as w,
    ):
        w.add(np.zeros(3), np.array([2]))
    assert not (tmp_path / "a.idx").exists()


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        (".idx", lambda raw: b"", r"a\.idx: not an index of tokens"),
        (".idx", lambda raw: b"GARBAGE" * 10, r"a\.idx: not an index of tokens"),
        (".idx", lambda raw: raw[:9] + b"\x02" + raw[10:], r"a\.idx: version 2, dtype code 8"),
        (".idx", lambda raw: raw[:-1], r"a\.idx: cut off: 2 sequences"),
        (".bin", lambda raw: raw[:-1], r"a\.bin: 9 bytes, but its index describes 5 tokens"),
    ],
)
def test_damage_is_told(tmp_path: Path, suffix: str, damage, message: str):
    write(tmp_path / "a", [[1, 2], [3, 4, 5]])
    file = tmp_path / f"a{suffix}"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=message):
        IndexedReader(tmp_path / "a")


def test_missing_files_are_told(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.bin: no such file"):
        IndexedReader(tmp_path / "a")


def test_dtype_is_the_smallest_that_megatron_takes():
    assert [token_dtype(size) for size in (100, 65499, 65500, 128256)] == ["uint16", "uint16", "int32", "int32"]
