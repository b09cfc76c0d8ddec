"""``primus convert`` with a backend that converts text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CONVERTER = """
    from primus_core.convert.order import Report

    @hookimpl
    def primus_backends():
        names = {"find": f"{__name__}:find", "convert": f"{__name__}:convert"}
        yield backend("toy", converter=Converter(**names))
        yield backend("plain")

    def find(path):
        return path / "toy.txt" if (path / "toy.txt").exists() else None

    def convert(order):
        words = (order.source / "config.json" if order.source.is_dir() else order.source).read_text()
        (order.output / "begun").write_text("")
        if "wrong" in words:
            raise UserError("a wrong word")
        if "bug" in words:
            raise ZeroDivisionError("too much")
        if "hole" in words:
            return Report(missing=["a"], mismatched=["b: [1], expected [2]"])
        (order.output / ("config.json" if order.format == "hf" else "toy.txt")).write_text(words)
        return Report(tensors=2, parameters=1234, notes=[f"as {order.dtype}, {order.shard_size}"])
"""


@pytest.fixture
def toy(site, tmp_path: Path) -> Path:
    """A folder with a checkpoint of the toy's, and a model in Hugging Face's format with a tokenizer."""
    site.install("primus-toy", CONVERTER)
    for name, file in (("toy", "toy.txt"), ("hf", "config.json"), ("hf", "tokenizer.json"), ("other", "x.txt")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text('"fine"')
    (tmp_path / "hf/tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return tmp_path


def test_to_and_from(site, toy: Path) -> None:
    done = site.primus("convert", f"{toy}/toy", "--to", "hf", "--output", f"{toy}/a/out", "--tokenizer", f"{toy}/hf")
    assert (done.returncode, done.stdout) == (
        0,
        f"{toy}/a/out: 2 tensors, 1,234 parameters\n0 missing, 0 extra, 0 shape mismatches\n",
    )
    assert done.stderr == "as None, 5000000000\n"
    assert sorted(file.name for file in (toy / "a" / "out").iterdir()) == ["begun", "config.json", "tokenizer.json"]
    assert [file.name for file in (toy / "a").iterdir()] == ["out"]
    words = ("--dtype", "bfloat16", "--shard-size", "1.5MB")
    again = site.primus("convert", f"{toy}/a/out", "--to", "toy", "--output", f"{toy}/back", *words)
    assert (again.returncode, again.stderr) == (0, "as bfloat16, 1500000\n")
    assert json.loads((toy / "back" / "toy.txt").read_text()) == "fine"


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("wrong", 2, "primus: a wrong word\n"),
        (
            "hole",
            2,
            "missing: a\nshape: b: [1], expected [2]\n"
            "primus: 1 missing, 0 extra, 1 shape mismatches; nothing was written\n",
        ),
        ("bug", 1, "ZeroDivisionError: too much"),
    ],
)
def test_nothing_is_left_of_a_failure(word: str, code: int, said: str, site, toy: Path) -> None:
    (toy / "toy" / "toy.txt").write_text(word)
    done = site.primus("convert", f"{toy}/toy", "--to", "hf", "--output", f"{toy}/results/out")
    assert done.returncode == code
    assert said in done.stderr
    assert [*(toy / "results").iterdir()] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("other", "--to", "hf"), "neither a checkpoint of toy, nor a folder with config.json and *.safetensors"),
        (("nowhere", "--to", "hf"), "no such file or folder"),
        (("hf", "--to", "hf"), "is in Hugging Face's format already; --to takes toy here"),
        (("toy", "--to", "toy"), "is a checkpoint of toy already"),
        (("toy", "--to", "tov"), "no such format; did you mean 'toy'?; there are hf, toy"),
        (("toy", "--to", "hf", "--shard-size", "big"), "'big' is no size; as in: 500MB, 5GB"),
        (("toy", "--to", "hf", "--tokenizer", "other"), "no tokenizer.json"),
    ],
)
def test_what_does_not_go_together(
    words: tuple[str, ...], said: str, site, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    done = site.primus("convert", *words, "--output", "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (toy / "out").exists()


def test_output_that_exists_is_kept(site, toy: Path) -> None:
    done = site.primus("convert", f"{toy}/toy", "--to", "hf", "--output", f"{toy}/hf")
    assert (done.returncode, done.stderr) == (2, f"primus: --output {toy}/hf: exists already\n")
