"""The page about configuration and the code agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from primus_core.cli.config import config
from primus_core.config import layout
from primus_core.config.source import parse
from primus_core.config.tree import Tree
from primus_core.errors import Problem

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(config.commands))
def test_every_command_is_on_the_page(name: str) -> None:
    assert f"`primus config {name}" in PAGE


@pytest.mark.parametrize("key", sorted(layout.EXPERIMENT.keys))
def test_every_key_of_an_experiment_is_on_the_page(key: str) -> None:
    last = key.split(".")[1] if key.startswith(("launch.container.", "launch.slurm")) else key.rpartition(".")[2]
    assert re.search(rf"`{last}`|\b{last}:", PAGE), key


def test_every_yaml_block_can_be_read() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        problems: list[Problem] = []
        tree = parse(block, "page.yaml", problems)
        assert isinstance(tree, Tree)
        assert not problems
        assert yaml.safe_load(block).keys() == tree.items.keys()
        assert not list(layout.EXPERIMENT.unknown_keys(tree.without("extends")))
