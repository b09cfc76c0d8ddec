"""``primus plugins``: what is installed, and in which state."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.new_plugin import new
from primus_core.cli.text import columns
from primus_core.errors import UserError
from primus_core.plugins.info import Contribution, PluginInfo
from primus_core.plugins.manager import did_you_mean, kind_of


@click.group()
def plugins() -> None:
    """What is installed, and in which state."""


plugins.add_command(new)


@plugins.command("list")
@click.option("--time", "timed", is_flag=True, help="Show how long each took to load, slowest first.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@pass_state
def list_(state: State, timed: bool, as_json: bool) -> None:
    """List all plugins: active, disabled and broken ones."""
    manager = state.plugins
    conflicts = manager.conflicts()
    infos = sorted(manager.infos, key=lambda info: -info.seconds) if timed else manager.infos
    if as_json:
        click.echo(json.dumps([_row(info) for info in infos], indent=1))
        return
    rows = [["name", "distribution", "status", *(["ms"] if timed else []), "hooks"]]
    for info in infos:
        time = [f"{info.seconds * 1000:.1f}"] if timed else []
        rows.append([info.name, info.source, info.status, *time, info.error or ", ".join(map(_short, info.hooks))])
    click.echo(columns(rows))
    for message in conflicts:
        click.echo(message, err=True)


@plugins.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@pass_state
def show(state: State, name: str, as_json: bool) -> None:
    """Show what the plugin NAME (or the distribution of that name) contributes, and from where."""
    manager = state.plugins
    registered = manager.registrations()
    chosen = [info for info in manager.infos if name in (info.name, info.distribution)]
    if not chosen:
        known = [word for info in manager.infos for word in (info.name, info.distribution)]
        raise UserError(f"no plugin {name!r} (see: primus plugins list){did_you_mean(name, known)}")
    found = [
        (info, [(hook, each) for hook, all_ in registered.items() for each in all_ if each.plugin == info])
        for info in chosen
    ]
    if as_json:
        rows = [_row(info) | {"contributions": [_contributed(*pair) for pair in pairs]} for info, pairs in found]
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo("\n\n".join(_described(info, pairs) for info, pairs in found))


def _described(info: PluginInfo, contributed: list[tuple[str, Contribution[Any]]]) -> str:
    rows = [("distribution", info.source), ("entry point", info.entry), ("status", info.status)]
    rows += [("file", str(info.file))] if info.file else []
    rows += [("loaded in", f"{info.seconds * 1000:.1f} ms"), ("hooks", ", ".join(info.hooks) or "none")]
    rows += [("error", info.error)] if info.error else []
    parts = [info.name, columns(rows, "  ")]
    if contributed:
        table = [
            (kind_of(hook), each.record.name, getattr(each.record, "summary", ""), each.place)
            for hook, each in contributed
        ]
        parts += ["  contributes", columns(table, "    ")]
    if info.traceback:
        parts.append(info.traceback.rstrip())
    return "\n".join(parts)


def _row(info: PluginInfo) -> dict[str, Any]:
    return dataclasses.asdict(info) | {"file": str(info.file) if info.file else None}


def _contributed(hook: str, each: Contribution[Any]) -> dict[str, str]:
    return {"hook": hook, "name": each.record.name, "place": each.place}


def _short(hook: str) -> str:
    return hook.removeprefix("primus_")
