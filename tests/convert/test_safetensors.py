from __future__ import annotations

import json
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
reader = pytest.importorskip("safetensors.numpy")

from primus_core.convert.safetensors import Entry, main_dtype, write  # noqa: E402

ARRAYS = {
    "a": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
    "b.weight": numpy.arange(4, dtype=numpy.float16),
    "c": numpy.array(5.0),
    "d": numpy.arange(100, dtype=numpy.float32),
}
DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64"}
ENTRIES = [Entry(name, DTYPES[str(array.dtype)], array.shape) for name, array in ARRAYS.items()]


def test_files_that_the_library_reads(tmp_path: Path) -> None:
    written = write(tmp_path, ENTRIES, map(memoryview, ARRAYS.values()), 10_000)
    assert written == [tmp_path / "model.safetensors"]
    read = reader.load_file(written[0])
    assert all(numpy.array_equal(read[name], array) for name, array in ARRAYS.items())
    assert main_dtype(ENTRIES) == "float32"


def test_shards(tmp_path: Path) -> None:
    files = write(tmp_path, ENTRIES, map(memoryview, ARRAYS.values()), 32)
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert [file.name for file in files] == names
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": 440},
        "weight_map": {"a": names[0], "b.weight": names[0], "c": names[1], "d": names[2]},
    }
    assert set(reader.load_file(files[0])) == {"a", "b.weight"}


def test_bytes_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a: 8 bytes instead of 24"):
        write(tmp_path, ENTRIES, [memoryview(bytes(8))], 10_000)
