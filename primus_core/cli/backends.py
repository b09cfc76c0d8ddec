"""``primus backends``: what each backend can do, from what the backends declare."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from primus_core.cli import shipped
from primus_core.cli.context import State, pass_state
from primus_core.cli.text import columns
from primus_core.config import capabilities
from primus_core.config.schema import Key, for_backend
from primus_core.plugins.records import Backend, Capability

_format = click.option(
    "--format", "form", type=click.Choice(("table", "markdown", "json")), default="table", show_default=True
)
_MARKS = {"full": "yes", "partial": "in part", "unsupported": "no"}


@click.group()
def backends() -> None:
    """What each backend can do."""


@backends.command("list")
@_format
@pass_state
def list_(state: State, form: str) -> None:
    """Compare all backends, feature by feature."""
    found = {each.name: capabilities.of(each) for each in shipped.backends(state.plugins, None)}
    known = {each.feature: capabilities.title(each) for declared in found.values() for each in declared}
    shared = [feature for feature in capabilities.FEATURES if feature in known]
    rows = [
        (known[feature], *(_mark(feature, declared) for declared in found.values()))
        for feature in [*shared, *(feature for feature in known if feature not in capabilities.FEATURES)]
    ]
    facts = {
        name: {each.feature: {"support": each.support, "note": each.note} for each in declared}
        for name, declared in found.items()
    }
    _say(form, ("feature", *found), rows, lambda: facts)


@backends.command()
@click.argument("name")
@_format
@pass_state
def show(state: State, name: str, form: str) -> None:
    """Show what the backend NAME can do, and which of its engine's keys it refuses."""
    backend = state.plugins.backend(name)
    refused = [key for key in for_backend(backend).keys.values() if key.refused]
    rows = [
        (capabilities.title(each), _MARKS[each.support], _where(each), each.note) for each in capabilities.of(backend)
    ]
    rows += [(f"`{key.name}`" if form == "markdown" else key.name, "no", "", key.refused) for key in refused]
    _say(form, ("feature", "", "where", "what to know"), rows, lambda: _facts(backend, refused))


def _mark(feature: str, declared: Sequence[Capability]) -> str:
    return next((_MARKS[each.support] for each in declared if each.feature == feature), "-")


def _where(capability: Capability) -> str:
    return " ".join((*capability.platforms, capability.engine)).strip()


def _facts(backend: Backend, refused: Sequence[Key]) -> Mapping[str, Any]:
    return {
        "name": backend.name,
        "engine": backend.engine,
        "engine_versions": backend.engine_versions,
        "features": {
            each.feature: {
                "title": capabilities.title(each),
                "support": each.support,
                "note": each.note,
                "platforms": each.platforms,
                "engine": each.engine,
                "asked": each.asked,
            }
            for each in capabilities.of(backend)
        },
        "refused": {key.name: key.refused for key in refused},
    }


def _say(form: str, head: Sequence[str], rows: Sequence[Sequence[str]], facts: Callable[[], Any]) -> None:
    if form == "json":
        click.echo(json.dumps(facts(), indent=1))
    elif form == "markdown":
        lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        click.echo("\n".join(lines))
    else:
        click.echo(columns([tuple(head), *rows]))
