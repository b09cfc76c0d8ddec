"""``primus logs``: what a rank said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from primus_core.errors import UserError

if TYPE_CHECKING:
    from primus_core.run.attempts import Attempt

_PAUSE = 0.2


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Default: 0.")
@click.option("--launcher", is_flag=True, help="Instead, the launcher's own log: torchrun's.")
@click.option("-n", "--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
def logs(run: Path, rank: int, launcher: bool, lines: int | None, follow: bool) -> None:
    """Show the log of a rank of RUN: the folder of one attempt, or of an experiment for its latest attempt."""
    from primus_core.run import follow as reading
    from primus_core.run.attempts import latest

    attempt = latest(run)
    file = attempt.folder / "logs" / "launcher.log" if launcher else attempt.log(rank)
    while follow and not file.exists() and _running(attempt):
        time.sleep(_PAUSE)
    if not file.exists():
        raise UserError(f"{file}: no such log{_others(attempt)}")
    text, end = reading.tail(file, lines)
    click.echo(text, nl=False)
    if follow:
        for text in reading.follow(file, end, lambda: _running(attempt), _PAUSE):
            click.echo(text, nl=False)


def _running(attempt: Attempt) -> bool:
    from primus_core.run.attempts import Attempt

    return Attempt(attempt.folder).status().state in ("running", "unknown")


def _others(attempt: Attempt) -> str:
    names = sorted((path.stem for path in (attempt.folder / "logs").glob("*.log")), key=lambda name: (len(name), name))
    more = " ..." if len(names) > 8 else ""
    return f"; there are {', '.join(names[:8])}{more}" if names else "; no rank has started yet"
