"""The contract with authors of plugins is documented, and its documentation is true."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from primus_core.plugins import hookspecs, records
from primus_core.plugins.manager import RECORDS

HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("primus_")}
PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_says_when_where_and_what(name):
    text = inspect.getdoc(HOOKS[name]) or ""
    for heading in ("When it is called:", "In which process:", "What it may return:", "Example::"):
        assert heading in text
    compile(inspect.cleandoc(text.partition("Example::")[2]), name, "exec")


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_stands_on_the_page_with_its_arguments(name):
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}("))
    assert f"`{name}({arguments})`" in row
    if name in RECORDS:
        assert f"`{RECORDS[name].__name__}`" in row


def test_hooks_that_contribute_records_are_checked_for_their_type():
    annotated = {
        name: str(inspect.signature(spec).return_annotation)
        for name, spec in HOOKS.items()
        if str(inspect.signature(spec).return_annotation).startswith("Iterable")
    }
    assert annotated == {name: f"Iterable[{record.__name__}]" for name, record in RECORDS.items()}


def test_records_are_frozen_and_import_nothing_heavy():
    for record in set(RECORDS.values()) - {RECORDS["primus_check_config"]}:
        assert record.__module__ == records.__name__
        assert issubclass(record, tuple) and record._fields


def test_the_smallest_plugin_of_the_page_works(site):
    source, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    site.install("primus-alarm").write_text(source)
    (project,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    ((name, module),) = tomllib.loads(project)["project"]["entry-points"]["primus"].items()
    (site.folder / "primus_alarm-1.0.dist-info/entry_points.txt").write_text(f"[primus]\n{name} = {module}\n")
    plugins = site.load()
    notes: list[str] = []
    run = SimpleNamespace(note=notes.append)
    for step, loss in enumerate((1.0, float("nan"), None)):
        plugins.notify("primus_step_finished", run=run, step=step, metrics={"loss": loss})
    assert notes == ["the loss is not a number at step 1"]
    assert site.warnings == []
