"""The view on a terminal: where the run is, how fast, and the curve of the loss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live as Region
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from primus_core.run.sinks.console import Progress, clock, figures, lines, sparkline, summary


class Live:
    """Redraws a few lines at the bottom; evaluations, checkpoints and notes scroll by above them."""

    def __init__(self, out: TextIO, attempt: Path) -> None:
        width = os.get_terminal_size(out.fileno()).columns or 80
        self._console = Console(file=out, force_terminal=True, width=width, highlight=False)
        self._attempt = attempt
        self._progress = Progress()
        self._region = Region(
            get_renderable=self._view,
            console=self._console,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._region.start()

    def event(self, event: Mapping[str, Any]) -> None:
        self._progress.take(event)
        kind = event["event"]
        if kind in ("run_finished", "run_failed"):
            self._region.stop()
            shown = summary(event, self._progress, self._attempt, self._console.encoding)
        else:
            shown = () if kind == "step" else lines(event, self._progress)
        for line in shown:
            self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        self._region.stop()

    def _view(self) -> Group | Text:
        progress = self._progress
        if not progress.latest:
            return Text("starting ...")
        row = Table.grid(padding=(0, 1))
        row.add_row(
            Text(f"step {progress.step}/{progress.steps}" if progress.steps else f"step {progress.step}", "bold"),
            ProgressBar(total=progress.steps, completed=progress.step, width=30),
            Text("" if progress.seconds_left is None else f"{clock(progress.seconds_left)} left"),
        )
        curve = sparkline(progress.losses.means, max(10, self._console.width - 2), self._console.encoding)
        return Group(row, Text("  ".join(figures(progress.latest))), Text(curve, "cyan"))
