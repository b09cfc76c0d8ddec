"""``primus init``: a small experiment to start from."""

from __future__ import annotations

import re

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.shipped import backends, models, target, write_new
from primus_core.config.layout import DEFAULTS
from primus_core.config.presets import Presets, stem
from primus_core.config.render import shown
from primus_core.config.source import parse
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import EnvironmentFault, UserError
from primus_core.plugins.known import DISTRIBUTIONS
from primus_core.plugins.records import Backend, Stage


@click.command()
@click.argument("dest", default="experiment.yaml")
@click.option("--backend", metavar="NAME", help="Default: the one that is installed.")
@click.option("--model", metavar="NAME", help="A preset (primus models list). Default: a small one for any machine.")
@click.option("--stage", type=click.Choice(["pretrain", "posttrain"]), default="pretrain", show_default=True)
@pass_state
def init(state: State, dest: str, backend: str | None, model: str | None, stage: Stage) -> None:
    """Write a small commented experiment to the file or folder DEST (default: experiment.yaml)."""
    path = target(dest, "experiment.yaml")
    chosen = _backend(state, backend)
    if stage not in chosen.stages:
        raise UserError(f"backend {chosen.name!r} cannot {stage}; it can {', '.join(chosen.stages)}")
    presets = Presets.of(chosen, state.plugins)
    if model is not None and not presets.find("models", model):
        raise UserError(presets.missing("models", model))
    write_new(path, _text(chosen, presets, stage, model and stem(model), path.stem))
    click.echo(path)
    click.echo(f"next: primus config check {path}\n      primus train {stage} --config {path}", err=True)


def _backend(state: State, name: str | None) -> Backend:
    found = backends(state.plugins, name)
    if not found:
        raise EnvironmentFault(f"no backend is installed; for Megatron: pip install {DISTRIBUTIONS['megatron']}")
    if len(found) > 1:
        raise UserError(f"say which backend: {', '.join(f'--backend {each.name}' for each in found)}")
    return found[0]


def _text(backend: Backend, presets: Presets, stage: Stage, model: str | None, name: str) -> str:
    template = backend.templates and backend.templates / (f"{stage}-model.yaml" if model else f"{stage}.yaml")
    if not template or not template.is_file():
        return _generic(backend, presets, stage, model, name)
    text = template.read_text(encoding="utf-8")
    wanted = {"exp_name": shown(name)} | ({"model": shown(f"{model}.yaml")} if model else {})
    tree = parse(text, template.name, [])
    assert isinstance(tree, Tree)
    places = [(path[-1], leaf) for path, leaf in tree.leaves() if path[-1] in wanted and len(path) in (1, 3)]
    for key, leaf in sorted(places, key=lambda place: place[1].origin, reverse=True):
        text = _with_value(text, leaf, wanted[key])
    return text


def _with_value(text: str, leaf: Leaf, value: str) -> str:
    """The text with another word in the place of a value."""
    lines = text.splitlines(keepends=True)
    line, column = leaf.origin.line - 1, leaf.origin.column - 1
    lines[line] = lines[line][:column] + re.sub(r"\S+", lambda _: value, lines[line][column:], count=1)
    return "".join(lines)


def _generic(backend: Backend, presets: Presets, stage: Stage, model: str | None, name: str) -> str:
    """An experiment for a backend without a template."""
    module = DEFAULTS[stage][0]
    complete, _ = models(presets)
    others = f"  # others: primus models list --backend {backend.name}"
    choice = f"model: {model or complete[0]}.yaml{others}" if complete else ""
    lines = [
        f"# {backend.summary.rstrip('.')}.",
        f"# Check it with: primus config check {name}.yaml",
        "work_group: ${PRIMUS_TEAM:local}",
        "user_name: ${PRIMUS_USER:me}",
        f"exp_name: {shown(name)}",
        "workspace: ./output  # runs are kept in workspace/work_group/user_name/exp_name",
        "",
        "modules:",
        f"  {module}:",
        f"    framework: {backend.name}",
        f"    {choice}",
        f"    overrides: {{}}  # parameters of {backend.engine}; primus config explain KEY says what one does",
    ]
    return "\n".join(line for line in lines if line.strip() or not line) + "\n"
