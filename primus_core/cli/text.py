"""Plain text in columns, for output that is pasted and piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from primus_core.errors import UserError


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Rows with their cells aligned to the left, two spaces apart."""
    table = [tuple(row) for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(f"{indent}{line}".rstrip() for line in padded)


def cell(value: Any, widest: int = 60) -> str:
    """A value on one line, cut where it is too long; ``-`` for None."""
    text = "-" if value is None else " ".join(str(value).split("\n"))
    return text if len(text) <= widest else f"{text[: widest - 3]}..."


def write(target: Path, text: str) -> None:
    """Write a file that the user asked for, and say where; raises ``UserError`` where that cannot be."""
    try:
        target.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}") from error
    click.echo(target)
