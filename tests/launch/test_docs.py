"""What the page about launchers says is what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from primus_core.config.source import parse
from primus_core.launch import slurm
from primus_core.launch.container.engines import ENGINES
from primus_core.launch.container.launcher import OPTIONS
from primus_core.platforms.environment import defaults
from primus_core.plugins.records import Device

PAGE = (Path(__file__).parents[2] / "docs/launch.md").read_text()
SHOWN = [option for option in OPTIONS if not option.hidden]
COLUMNS = {1: ("rocm", "gfx1250"), 2: ("rocm", "gfx942"), 3: ("rocm", "gfx950"), 4: ("cuda", "sm_90")}


@pytest.mark.parametrize("option", [*SHOWN, *slurm.OPTIONS], ids=str)
def test_every_option_is_on_the_page(option):
    assert re.search(rf"`?{option.opts[0]}\b", PAGE)


def test_the_programs_are_on_the_page():
    assert "\\|".join(ENGINES) in PAGE


def table() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (`[A-Z_0-9]+`(?:, `[A-Z_0-9]+`)*) \|(.*)\|$", PAGE, re.MULTILINE)
    cells = {names: [cell.strip() for cell in rest.split("|")] for names, rest in rows}
    return {name.strip("`"): row for names, row in cells.items() for name in names.split(", ")}


@pytest.mark.parametrize("column", COLUMNS)
def test_defaults_of_the_platforms(column):
    platform, arch = COLUMNS[column]
    for var in defaults(platform, [Device(name=arch, arch=arch)]):
        row = table()[var.name]
        shown = row[column - 1] or row[0]
        if shown.startswith("`/tmp") or shown == "the same":
            assert arch in var.value
        else:
            assert shown == var.value, var.name


def test_every_yaml_block_can_be_read():
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        problems: list = []
        parse(block, "page.yaml", problems)
        assert not problems
