"""Files to documents: formats, cutting, and the places of bad records."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.data import sources
from primus_core.data.sources import Split, cut, describe, find_files, read
from primus_core.errors import UserError


def documents(path: Path, split: Split = "file", key: str = "text") -> list[str]:
    source = describe(path, key)
    return [text for part in cut([source], split) for piece in part for text in read(source, piece, split)]


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def zstd(path: Path, raw: bytes) -> None:
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(raw)


def test_a_text_file_is_one_document_and_kept_as_it_is(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeffeins\r\n\nzwei\n".encode())
    assert documents(tmp_path / "a.txt") == ["eins\r\n\nzwei\n"]


def test_paragraphs_and_lines(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n\none\ntwo\n \n\nthree\n\n")
    assert documents(tmp_path / "a.txt", "paragraph") == ["one\ntwo", "three"]
    assert documents(tmp_path / "a.txt", "line") == ["one", "two", " ", "three"]


@pytest.mark.parametrize("pack", [Path.write_bytes, lambda p, raw: p.write_bytes(gzip.compress(raw)), zstd])
def test_json_lines_also_compressed(tmp_path: Path, pack: Callable[[Path, bytes], object]):
    suffix = {"write_bytes": "", "zstd": ".zst"}.get(pack.__name__, ".gz")
    path = tmp_path / f"a.jsonl{suffix}"
    pack(path, b'{"text": "one"}\n\n{"text": "zw\\u00f6lf", "id": 3}')
    assert documents(path) == ["one", "zwölf"]


def test_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["one", "two", "three"], "id": [1, 2, 3]}), path, row_group_size=2)
    assert documents(path, key="body") == ["one", "two", "three"]
    with pytest.raises(UserError, match=r"no column 'text'; there are 'body', 'id': choose one with --key"):
        documents(path)
    pq.write_table(pa.table({"text": ["one", None, "three"]}), path, row_group_size=1)
    with pytest.raises(UserError, match=r"a\.parquet:2:1: row 2: 'text' is not a text but None"):
        documents(path)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85")), min_size=1),
    st.integers(1, 60),
    st.sampled_from(["json", "line", "paragraph"]),
)
def test_cutting_loses_and_repeats_nothing(tmp_path_factory, texts: list[str], size: int, form: str):
    path = tmp_path_factory.mktemp("cut") / ("a.jsonl" if form == "json" else "a.txt")
    if form == "json":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    else:
        texts = [text for text in texts if text.removeprefix("\ufeff").strip()]
        gap = "\n" if form == "line" else "\n\n"
        path.write_text("-" + gap + "".join(text + gap for text in texts), encoding="utf-8")
        texts = ["-", *texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SLICE_BYTES", size)
        assert documents(path, "file" if form == "json" else form) == texts


def test_bad_lines_have_a_place_also_behind_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = lines(tmp_path / "a.jsonl", *[{"text": str(n)} for n in range(100)])
    with path.open("ab") as file:
        file.write(b'{"text": "x"\n[1]\n{"body": "x"}\n{"text": 3}\n\xff\n{"text": "\\ud800"}\n')
    monkeypatch.setattr(sources, "SLICE_BYTES", 650)
    with pytest.raises(UserError) as caught:
        documents(path)
    assert str(caught.value).replace(str(path), "a.jsonl").splitlines() == [
        "a.jsonl:101:13: not JSON: Expecting ',' delimiter",
        "a.jsonl:102:1: not a JSON object; expected one object per line",
        "a.jsonl:103:1: no key 'text'; there are 'body': choose one with --key",
        "a.jsonl:104:1: 'text' is not a text but 3",
        "a.jsonl:105:1: not UTF-8",
        "a.jsonl:106:1: 'text' contains half of a surrogate pair, which is no text",
    ]


@pytest.mark.parametrize("split", ["file", "paragraph", "line"])
def test_bytes_that_are_no_text_have_a_place(tmp_path: Path, split: Split):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\nth\xffree\n")
    with pytest.raises(UserError, match=r"a\.txt:4:3: not UTF-8"):
        documents(tmp_path / "a.txt", split)


def test_damaged_compression_is_told(tmp_path: Path):
    whole = gzip.compress(b'{"text": "one"}\n' * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    (tmp_path / "no.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "no.jsonl.zst").write_bytes(b"no zstd at all")
    for name in ("cut.jsonl.gz", "no.jsonl.gz", "no.jsonl.zst"):
        with pytest.raises(UserError, match=rf"{name}: cannot be decompressed"):
            documents(tmp_path / name)
    (tmp_path / "no.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"no\.parquet: not a Parquet file"):
        documents(tmp_path / "no.parquet")


def test_folders_and_patterns(tmp_path: Path):
    for name in ("b.txt", "a.jsonl", "sub/c.md", "sub/d.txt.gz", ".hidden/e.txt", "f.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty.txt").touch()
    found, empty = find_files([str(tmp_path)], "text")
    assert [source.path.name for source in found] == ["a.jsonl", "b.txt", "c.md", "d.txt.gz"]
    assert empty == [str(tmp_path / "empty.txt")]
    found, _ = find_files([f"{tmp_path}/**/*.txt*", str(tmp_path / "b.txt")], "text")
    assert [source.path.name for source in found] == ["b.txt", "d.txt.gz"]


def test_all_that_is_missing_is_told_at_once(tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        find_files([f"{tmp_path}/{name}" for name in ("empty.txt", "folder", "none.txt", "*.jsonl")], "text")
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "empty.txt: empty file",
        "folder: no files with .txt, .text, .md, .rst, .jsonl, .ndjson, .json, .parquet in this folder",
        "none.txt: no such file, folder or dataset",
        "*.jsonl: no file matches",
    ]
