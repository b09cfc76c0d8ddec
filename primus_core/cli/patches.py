"""``primus patches``: what is replaced in engines, why, and whether it still fits."""

from __future__ import annotations

import json

import click

from primus_core.cli.context import State, pass_state
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
    width = max((len(patch.name) for registry in registries for patch in registry.patches), default=0)
    for registry in registries:
        click.echo(_headline(registry))
        for decision in registry.decide(None):
            patch = decision.patch
            click.echo(f"  {patch.name:{width}}  {'required' if patch.required else 'optional'}  {patch.reason}")
            if explain:
                for key, text in _explained(registry, decision):
                    click.echo(f"      {key:8}  {text}")


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
    checked = [(registry, registry.check()) for registry in registries]
    if as_json:
        rows = [_described(registry, each) for registry, decisions in checked for each in decisions]
        click.echo(json.dumps(rows, indent=1))
    else:
        width = max((len(each.patch.name) for _, decisions in checked for each in decisions), default=0)
        for registry, decisions in checked:
            click.echo(_headline(registry))
            for each in decisions:
                click.echo(f"  {each.patch.name:{width}}  {_word(each):10}  {each.because}")
    for registry, decisions in checked:
        registry.require(decisions)


def _registries(state: State, backend: str | None) -> list[Registry]:
    plugins = state.plugins
    backends = (
        [plugins.backend(backend)] if backend else [entry.record for entry in plugins.named("primus_backends").values()]
    )
    return [Registry.of(plugins, each) for each in backends]


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
