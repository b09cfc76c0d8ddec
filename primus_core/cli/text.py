"""Plain text in columns, for output that is pasted and piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Rows with their cells aligned to the left, two spaces apart."""
    table = [tuple(row) for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(f"{indent}{line}".rstrip() for line in padded)
