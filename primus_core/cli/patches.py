"""``primus patches``: what is replaced in engines, why, and whether it still fits."""

from __future__ import annotations

import json
import warnings
from itertools import groupby

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.shipped import backends
from primus_core.cli.text import columns
from primus_core.patches.conditions import parts
from primus_core.patches.registry import Decision, Registry, marks_of

_backend = click.option("--backend", metavar="NAME", help="Default: all backends.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def patches() -> None:
    """What is replaced in engines, and why.

    A patch is a named, versioned and checked replacement of something in an engine.
    """


@patches.command("list")
@_backend
@click.option("--explain", is_flag=True, help="Show targets, conditions and what is known about this machine.")
@_json
@pass_state
def list_(state: State, backend: str | None, explain: bool, as_json: bool) -> None:
    """Name the patches, without importing an engine."""
    registries = _registries(state, backend)
    if as_json:
        click.echo(json.dumps([_described(registry, each) for registry, each in _decided(registries)], indent=1))
        return
    for registry in registries:
        click.echo(_headline(registry))
        decisions = registry.decide(None)
        if explain:
            for each in decisions:
                click.echo(f"  {each.patch.name}: {_kind(each)}, {each.patch.reason}")
                click.echo(columns(_explained(registry, each), "      "))
        else:
            _table([(each, _kind(each), each.patch.reason) for each in decisions])


@patches.command()
@_backend
@_json
@click.option(
    "--update", is_flag=True, help="For authors: record the targets as they are now, for the installed version."
)
@pass_state
def check(state: State, backend: str | None, as_json: bool, update: bool) -> None:
    """Compare the patches with the installed engines. Exit code 3 if a required one does not fit."""
    registries = _registries(state, backend)
    if update:
        for registry in registries:
            for file in registry.update():
                click.echo(f"written: {file}", err=True)
    with warnings.catch_warnings(action="ignore"):  # those of engines, while they are imported
        checked = [(registry, registry.check()) for registry in registries]
    if as_json:
        rows = [_described(registry, each) for registry, decisions in checked for each in decisions]
        click.echo(json.dumps(rows, indent=1))
    else:
        for registry, decisions in checked:
            click.echo(_headline(registry))
            _table([(each, _word(each), each.because) for each in decisions])
    for registry, decisions in checked:
        registry.require(decisions)


def _registries(state: State, backend: str | None) -> list[Registry]:
    plugins = state.plugins
    return [Registry.of(plugins, each) for each in backends(plugins, backend)]


def _decided(registries: list[Registry]) -> list[tuple[Registry, Decision]]:
    return [(registry, decision) for registry in registries for decision in registry.decide(None)]


def _described(registry: Registry, decision: Decision) -> dict[str, object]:
    backend = registry.backend
    where = {"backend": backend.name, "engine": backend.engine, "engine_version": registry.version}
    return decision.row() | {"status": _word(decision), "fingerprints": sorted(marks_of(decision.patch))} | where


def _headline(registry: Registry) -> str:
    backend = registry.backend
    count = len(registry.patches)
    version = registry.version or "(not installed)"
    return f"{backend.name}: {backend.engine} {version}, {count} patch{'es' if count != 1 else ''}"


def _table(rows: list[tuple[Decision, str, str]]) -> None:
    """One line for each patch; members of a set that stand together and say the same share one."""

    def together(row: tuple[Decision, str, str]) -> tuple[str, ...]:
        return (row[0].patch.set or row[0].patch.name, *row[1:])

    groups = [list(group) for _, group in groupby(rows, together)]
    if groups:
        click.echo(columns([(_names([row[0] for row in group]), *group[0][1:]) for group in groups], "  "))


def _names(decisions: list[Decision]) -> str:
    more = len(decisions) - 1
    return decisions[0].patch.name + (f" and {more} more of set {decisions[0].patch.set}" if more else "")


def _kind(decision: Decision) -> str:
    return "required" if decision.patch.required else "optional"


def _word(decision: Decision) -> str:
    return {"pending": "fits", "failed": "FAILED", "skipped": "left out"}.get(decision.status, decision.status)


def _explained(registry: Registry, decision: Decision) -> list[tuple[str, str]]:
    patch = decision.patch
    verdict = {True: "yes", False: "no", None: "depends on the run"}
    rows = [("target", patch.target), *(("also in", alias) for alias in patch.aliases)]
    rows += [("versions", f"{registry.backend.engine} {patch.engine_versions}"), ("phase", patch.phase)]
    rows += [("set", patch.set)] if patch.set else []
    rows += [("only if", f"{words}: {verdict[holds]}") for words, holds in parts(patch.when, registry.version)]
    if patch.fingerprints:
        rows.append(("recorded", f"for {', '.join(sorted(marks_of(patch))) or 'no version'}"))
    rows += [("upstream", patch.upstream)] if patch.upstream else []
    return [*rows, ("here", decision.because)]
