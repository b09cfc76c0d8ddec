"""``primus runs``: which runs there are, and how they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from primus_core.run.attempts import Attempt, Status

_TITLES = ("run", "backend", "model", "started", "step", "loss", "state")


@click.group()
def runs() -> None:
    """Look at runs."""


@runs.command("list")
@click.argument("workspace", type=click.Path(path_type=Path, exists=True, file_okay=False), default="output")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def list_(workspace: Path, as_json: bool) -> None:
    """All experiments and attempts below WORKSPACE (default: output), and whether they run, are done, or failed."""
    from primus_core.cli.text import columns
    from primus_core.run import attempts

    alive = attempts.marked()
    found = [(attempt, attempt.status(alive)) for attempt in attempts.find(workspace)]
    if as_json:
        click.echo(json.dumps([_facts(*each) for each in found], indent=1))
    elif found:
        click.echo(columns([_TITLES, *(_row(workspace, *each) for each in found)]))
    else:
        click.echo(f"no runs below {workspace}")


def _facts(attempt: Attempt, status: Status) -> dict[str, Any]:
    about = attempt.about
    return {
        "folder": str(attempt.folder),
        "attempt": attempt.folder.name,
        **{name: about.get(name) for name in ("name", "stage", "backend", "model", "platform", "started")},
        "step": attempt.last("step"),
        "steps": attempt.expected,
        "loss": attempt.last("loss"),
        "state": status.state,
        "detail": status.detail,
        "exit_code": status.exit_code,
        "seconds": attempt.result.get("seconds"),
    }


def _row(workspace: Path, attempt: Attempt, status: Status) -> tuple[str, ...]:
    facts = _facts(attempt, status)
    step, steps, loss = facts["step"], facts["steps"], facts["loss"]
    return (
        str(attempt.folder.relative_to(workspace)).replace("/attempts/", "/"),
        facts["backend"] or "-",
        facts["model"] or "-",
        (facts["started"] or "-").replace("T", " ")[:16],
        "-" if step is None and steps is None else f"{step or 0}/{steps}" if steps else f"{step}",
        "-" if loss is None else f"{loss:.4f}",
        str(status),
    )
