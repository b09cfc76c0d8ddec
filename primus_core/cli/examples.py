"""``primus examples``: the experiments that plugins bring along."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.shipped import backends, summary, target, to_yaml, write_new
from primus_core.cli.text import columns
from primus_core.config.presets import File, Reader
from primus_core.config.tree import Tree
from primus_core.errors import ConfigError, UserError
from primus_core.plugins.records import Backend

_backend = click.option("--backend", metavar="NAME", help="Default: all backends.")
_gpu = click.option("--gpu", metavar="NAME", help="Only those for this GPU, such as MI300X.")


@dataclass(frozen=True, slots=True)
class Example:
    """An experiment file. ``name`` is its path without ending; what only others extend starts with ``_``."""

    backend: Backend
    name: str
    file: Path

    @property
    def gpu(self) -> str | None:
        """The folder that it lies in."""
        return self.name.rpartition("/")[0].rpartition("/")[2] or None

    @property
    def source(self) -> str:
        return f"{self.backend.name}/examples/{self.name}.yaml"


@click.group()
def examples() -> None:
    """Experiments that plugins bring along."""


@examples.command("list")
@_backend
@_gpu
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@pass_state
def list_(state: State, backend: str | None, gpu: str | None, as_json: bool) -> None:
    """List the examples."""
    found = _found(state, backend, gpu)
    rows = [(each.name, each.backend.name, summary(each.file)) for each in found]
    if as_json:
        keys = ("name", "backend", "summary", "gpu", "file")
        pairs = zip(rows, found, strict=True)
        values = [dict(zip(keys, (*row, each.gpu, str(each.file)), strict=True)) for row, each in pairs]
        click.echo(json.dumps(values, indent=1))
    elif rows:
        click.echo(columns([("name", "backend", "what it is"), *rows]))


@examples.command()
@click.argument("name")
@_backend
@_gpu
@pass_state
def show(state: State, name: str, backend: str | None, gpu: str | None) -> None:
    """Print the example NAME as `copy` would write it. The folder can be left away where it is clear."""
    click.echo(_text(_one(state, name, backend, gpu), state), nl=False)


@examples.command()
@click.argument("name")
@click.argument("dest", default=".")
@_backend
@_gpu
@pass_state
def copy(state: State, name: str, dest: str, backend: str | None, gpu: str | None) -> None:
    """Write the example NAME to the file or folder DEST (default: here). Nothing is overwritten.

    The copy stands on its own: what the example extends is written into it.
    """
    example = _one(state, name, backend, gpu)
    path = target(dest, example.file.name)
    write_new(path, _text(example, state))
    click.echo(path)


def _all(state: State, backend: str | None) -> Iterator[Example]:
    for each in backends(state.plugins, backend):
        if each.examples is None:
            continue
        for file in sorted(each.examples.rglob("*.yaml")):
            parts = file.relative_to(each.examples).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                yield Example(each, "/".join(parts).removeprefix("configs/"), file)


def _found(state: State, backend: str | None, gpu: str | None) -> list[Example]:
    found = list(_all(state, backend))
    if gpu is None:
        return found
    chosen = [each for each in found if each.gpu and each.gpu.lower() == gpu.lower()]
    if not chosen:
        there = ", ".join(sorted({each.gpu for each in found if each.gpu}))
        raise UserError(f"no examples for the GPU {gpu!r}; there are some for: {there or 'none'}")
    return chosen


def _one(state: State, name: str, backend: str | None, gpu: str | None) -> Example:
    found = _found(state, backend, gpu)
    bare = name.removesuffix(".yaml").removeprefix("configs/")
    exact = [each for each in found if each.name == bare]
    fitting = exact or [each for each in found if each.name.endswith(f"/{bare}")]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        sides = ", ".join(f"{each.name} ({each.backend.name})" for each in fitting)
        raise UserError(f"{name!r} can be any of: {sides}; say which, or narrow with --gpu or --backend")
    known = {word for each in found for word in (each.name, each.name.rpartition("/")[2])}
    close = difflib.get_close_matches(bare, known, n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else " (see: primus examples list)"
    raise UserError(f"no example {name!r}{hint}")


def _text(example: Example, state: State) -> str:
    """The example on its own: the file itself, or, where it extends others, all of them merged."""
    reader = Reader([], state.environ)
    tree = reader.experiment(File(example.file, example.source, shipped=True))
    if reader.problems:
        raise ConfigError(reader.problems)
    text = example.file.read_text(encoding="utf-8")
    if len(reader.files) == 1:
        return text
    return f"# {summary(example.file)}\n{to_yaml(_as_written(tree))}"


def _as_written(tree: Tree) -> dict[str, object]:
    """Values, with substitutions as they stand in the files; mappings last, as one writes them."""
    items = sorted(tree.items.items(), key=lambda item: isinstance(item[1], Tree))
    return {name: _as_written(node) if isinstance(node, Tree) else node.value for name, node in items}
