"""``primus models``: the model presets that plugins bring along."""

from __future__ import annotations

import json
from pathlib import Path

import click

from primus_core.cli import shipped
from primus_core.cli.context import State, pass_state
from primus_core.cli.text import columns
from primus_core.config.presets import File, Presets, Reader, stem
from primus_core.config.render import shown
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, EnvironmentFault, Origin, UserError
from primus_core.plugins.records import load

_backend = click.option("--backend", metavar="NAME", help="Default: all backends.")
_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.group()
def models() -> None:
    """Models that plugins bring along."""


@models.command("list")
@_backend
@click.option("--all", "everything", is_flag=True, help="Show also what models are built on.")
@_json
@pass_state
def list_(state: State, backend: str | None, everything: bool, as_json: bool) -> None:
    """List the presets that an experiment can name as its model."""
    rows = []
    for each in shipped.backends(state.plugins, backend):
        presets = Presets.of(each, state.plugins)
        complete, bases = shipped.models(presets)
        for name in sorted([*complete, *bases]) if everything else complete:
            text = shipped.summary(_file(presets, name).path)
            rows.append({"name": name, "backend": each.name, "summary": text, "base": name in bases})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif rows:
        click.echo(columns([("name", "backend", "what it is")] + [_cells(row) for row in rows]))


@models.command()
@click.argument("name")
@_backend
@_json
@pass_state
def show(state: State, name: str, backend: str | None, as_json: bool) -> None:
    """Show what the preset NAME is, what it is built on, and all its values with their origins."""
    found = []
    known = shipped.backends(state.plugins, backend)
    for each in known:
        presets = Presets.of(each, state.plugins)
        if presets.find("models", name):
            found.append((presets, *_read(name, presets, state)))
    if not found:
        messages = [Presets.of(each, state.plugins).missing("models", name) for each in known]
        raise UserError("\n".join(messages) or "no backend is installed")
    if as_json:
        click.echo(json.dumps([_described(stem(name), *each) for each in found], indent=1))
    else:
        click.echo("\n\n".join(_page(stem(name), *each) for each in found))


def _cells(row: dict[str, object]) -> tuple[str, str, str]:
    return str(row["name"]), str(row["backend"]), str(row["summary"])


def _file(presets: Presets, name: str) -> File:
    files = presets.find("models", name)
    if len(files) > 1:
        raise EnvironmentFault(f"model {name!r} exists twice: {' and '.join(str(file.path) for file in files)}")
    return files[0]


def _read(name: str, presets: Presets, state: State) -> tuple[File, Tree, list[File]]:
    reader = Reader([], state.environ)
    here = Origin("command line")
    tree = reader.named(Leaf(name, here, here), "models", presets, Path())
    if reader.problems:
        raise ConfigError(reader.problems)
    file = _file(presets, name)
    return file, tree, [presets.named(File(path, str(path)), "models") for path in reader.files[1:]]


def _headline(presets: Presets, tree: Tree) -> dict[str, object]:
    plain = {".".join(path): leaf.value for path, leaf in tree.leaves()}
    backend = presets.backend
    found = {words: plain[key] for words, key in backend.headline.items() if plain.get(key) is not None}
    return found | dict(load(backend.describe)(plain) if backend.describe else {})


def _described(name: str, presets: Presets, file: File, tree: Tree, chain: list[File]) -> dict[str, object]:
    return {
        "name": name,
        "backend": presets.backend.name,
        "summary": shipped.summary(file.path),
        "file": str(file.path),
        "extends": [parent.source for parent in chain],
        "headline": _headline(presets, tree),
        "values": {".".join(path): {"value": leaf.value, "origin": str(leaf.origin)} for path, leaf in tree.leaves()},
    }


def _page(name: str, presets: Presets, file: File, tree: Tree, chain: list[File]) -> str:
    facts = [("backend", presets.backend.name), ("file", str(file.path))]
    facts += [("extends", ", ".join(Path(parent.source).stem for parent in chain))] if chain else []
    facts += [
        (words, shown(value) if isinstance(value, list) else str(value))
        for words, value in _headline(presets, tree).items()
    ]
    values = [(".".join(path), shown(leaf.value), str(leaf.origin)) for path, leaf in tree.leaves()]
    return "\n".join([f"{name}: {shipped.summary(file.path)}", columns(facts, "  "), "", columns(values, "  ")])
