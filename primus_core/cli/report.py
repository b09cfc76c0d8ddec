"""``primus report``: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path

import click

from primus_core.cli.text import write


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Default: report.html in the run's folder."
)
def report(run: Path, output: Path | None) -> None:
    """Write one self-contained HTML page about RUN: the folder of an experiment, or of one attempt."""
    from primus_core.run.report import render

    write(output or run / "report.html", render(run))
