"""What this plugin contributes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend, Command

_HERE = Path(__file__).parent


@hookimpl
def primus_backends() -> Iterable[Backend]:
    yield Backend(
        name="preflight",
        summary="Looks at the nodes of a job, and measures them",
        engine="primus-preflight",
        engine_versions=">=0.1,<0.2",
        trainer="primus_preflight.program:run_checks",
        schemas=_HERE / "schemas",
        presets=_HERE / "presets",
        requires={"torch": ">=2.6"},
        install="pip install primus-preflight",
        tool=True,
    )


@hookimpl
def primus_commands() -> Iterable[Command]:
    yield Command(
        name="preflight",
        summary="Look at the nodes of a job, and measure them, before it starts",
        command="primus_preflight.cli:preflight",
        launches=True,
    )
