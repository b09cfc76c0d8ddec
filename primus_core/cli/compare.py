"""``primus compare``: runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from primus_core.run.compare import Side


@click.command()
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN RUN...", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page with curves here.")
def compare(runs: tuple[Path, ...], output: Path | None) -> None:
    """Show results of RUNs side by side, and what differs: configuration, versions, patches, code, hardware, data.

    A RUN is the folder of an experiment, with all its attempts, or of one attempt.
    """
    from primus_core.cli.text import cell, columns, write
    from primus_core.run.compare import Facts, differences, figures, sides

    if len(runs) < 2:
        raise click.UsageError("give two runs at least")
    found = sides(runs)
    click.echo(columns(_results(found, figures(found))))
    for title, rows in differences([Facts.of(side.history.latest) for side in found]).items():
        if rows:
            head = (title, *(side.label for side in found))
            click.echo()
            click.echo(columns([head, *((row.name, *map(cell, row.values)) for row in rows)]))
    if output is not None:
        from primus_core.run.report import compare as render

        write(output, render(found))


def _results(found: Sequence[Side], rows: Sequence[tuple[str, list[str]]]) -> Iterator[tuple[str, ...]]:
    yield "", *(side.label for side in found)
    for title, cells in rows:
        yield title, *(cell or "-" for cell in cells)
