from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin
from primus_core.run import fingerprint

HERE = Origin("x.yaml", 1, 1)


def of(**values):
    config = Tree(HERE, {name: Leaf(value, HERE, HERE) for name, value in values.items()})
    return fingerprint.of_config(config, Path("output/me"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "local", "tokenizer", "output/me"):
        Path(name).mkdir(parents=True)
    for name in ("data/a.bin", "data/a.idx", "data/b.bin", "data/b.idx", "tokenizer/t.json", "output/me/x", "one.txt"):
        Path(name).write_text(name)


def test_files_prefixes_and_folders_that_values_name():
    found = of(
        data_path="30 data/a 70 data/b",
        text="one.txt",
        tokenizer_model="./tokenizer",
        impl="local",
        number=3,
        none=None,
    )
    assert {path: entry["key"] for path, entry in found.items()} == {
        "data/a.bin": "data_path",
        "data/a.idx": "data_path",
        "data/b.bin": "data_path",
        "data/b.idx": "data_path",
        "one.txt": "text",
        "tokenizer": "tokenizer_model",
    }
    assert found["one.txt"]["fingerprint"].startswith("7 bytes, sha256 ")


def test_what_a_run_writes_is_no_data():
    assert of(save="./data", tensorboard_dir="./data", load="output/me/x", long="x" * 5000, zero="a\0b") == {}


def test_change_of_a_small_file_is_seen_and_a_copy_is_none():
    before = fingerprint.of_path(Path("one.txt"))
    os.utime("one.txt", (1, 1))
    assert fingerprint.of_path(Path("one.txt")) == before
    Path("one.txt").write_text("ONE.txt")
    assert fingerprint.of_path(Path("one.txt")) != before


def test_change_of_a_large_file_is_seen_by_size_ends_or_time():
    big = Path("big.bin")
    with big.open("wb") as file:
        file.truncate(1 << 40)
    os.utime(big, (1, 1))
    seen = {fingerprint.of_path(big)}
    for place in (0, (1 << 40) - 1):
        with big.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        os.utime(big, (1, 1))
        seen.add(fingerprint.of_path(big))
    os.utime(big, (2, 2))
    seen.add(fingerprint.of_path(big))
    assert len(seen) == 4


def test_change_in_a_folder_is_seen():
    before = fingerprint.of_path(Path("tokenizer"))
    Path("tokenizer/t.json").write_text("tokenizer/T.json")
    assert fingerprint.of_path(Path("tokenizer")) != before
