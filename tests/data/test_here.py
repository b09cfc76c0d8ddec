"""Tokenizers that are here, that can be fetched, and that are nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_core.config.experiment import Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.config.values import Values
from primus_core.data.head import HEADER, MAGIC
from primus_core.data.here import tokenizer_here, tokens_here
from primus_core.errors import Origin

PLACE = Origin("x.yaml", 3, 5)


def values(name: str) -> Values:
    experiment = Experiment(
        file=Path("x.yaml"),
        work_group="",
        user_name="",
        exp_name="x",
        workspace=Path(),
        module="pre_trainer",
        stage="pretrain",
        backend="toy",
        model=None,
        config=Tree(PLACE, {"tok": Leaf(name, PLACE, PLACE)}),
        launch=Tree(PLACE),
        env=Tree(PLACE),
    )
    return Values(experiment)


def said(name: str, **environ: str) -> list[tuple[str, str]]:
    return [(problem.severity, str(problem)) for problem in tokenizer_here(values(name), "tok", environ)]


def test_a_local_tokenizer_and_a_cached_one_are_fine(tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--a--b").mkdir(parents=True)
    assert said(str(tmp_path)) == said("a/b", HF_HOME=str(tmp_path)) == []
    assert said("a/b", HF_HUB_CACHE=str(tmp_path / "hub"), HF_HUB_OFFLINE="1") == []


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "~/nowhere", "nowhere", "a/b/c"])
def test_a_missing_folder_is_an_error(name: str) -> None:
    found = f"x.yaml:3:5: tok: there is no {name}; give the folder or file of a tokenizer"
    assert said(name) == [("error", found)]


def test_no_tokenizer_is_an_error() -> None:
    assert said("") == [("error", "x.yaml:3:5: tok: text needs a tokenizer: give its folder or file")]


def test_a_name_is_fetched_unless_the_hub_is_off(tmp_path: Path) -> None:
    ((severity, message),) = said("a/b", HF_HOME=str(tmp_path))
    assert severity == "notice" and "a/b will be fetched from the hub" in message
    ((severity, message),) = said("a/b", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert severity == "error" and "HF_HUB_OFFLINE is set; tok takes the folder of a local one too" in message


def test_tokens_are_two_files_named_without_their_endings(tmp_path: Path) -> None:
    prefix = str(tmp_path / "tokens")
    (found,) = tokens_here(values(prefix), "tok", prefix)
    assert str(found).endswith(f"there is no file {prefix}.bin and {prefix}.idx (`primus data prepare` writes them)")
    (tmp_path / "tokens.bin").touch()
    (found,) = tokens_here(values(prefix), "tok", f"{prefix}.bin")
    assert str(found).endswith("; write it without its ending")
    (tmp_path / "tokens.idx").write_bytes(HEADER.pack(MAGIC, 1, 8, 5, 6))
    (found,) = tokens_here(values(prefix), "tok", prefix)
    assert str(found).endswith("tokens.idx: cut off: 5 sequences are announced")
    (tmp_path / "tokens.idx").write_bytes(HEADER.pack(MAGIC, 1, 8, 0, 0))
    assert not [*tokens_here(values(prefix), "tok", prefix)]
