"""Whether all nodes see the same files in the workspace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 20.0
_RATE_BYTES = 64 * 2**20


def consistent(
    folder: Path, token: str, node: int, nodes: int, leader: bool, barrier: Callable[[], None]
) -> tuple[list[str], float | None]:
    """What is wrong from this rank's side, and the rate of writing in bytes/s; one rank of each node is its leader.

    Each leader writes a file, and reads those of all others. All ranks call this; nothing is left behind.
    """
    mine = folder / f"{token}-{node}"
    problems: list[str] = []
    rate = None
    try:
        if leader:
            try:
                rate = _write(mine, token.encode())
            except OSError as error:
                problems.append(f"cannot write into {folder}: {error.strerror}")
        barrier()
        if leader:
            missing = [other for other in range(nodes) if not _reads(folder / f"{token}-{other}", token)]
            if missing:
                problems.append(f"{folder} is not shared: files of node {', '.join(map(str, missing))} do not appear")
        barrier()
    finally:
        if leader:
            mine.unlink(missing_ok=True)
    return problems, rate


def _write(file: Path, token: bytes) -> float:
    block = token.ljust(2**20, b"\0")
    began = time.perf_counter()
    with file.open("wb") as out:
        for _ in range(_RATE_BYTES // len(block)):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return _RATE_BYTES / (time.perf_counter() - began)


def _reads(file: Path, token: str) -> bool:
    """Whether the whole file is there soon: attributes may be cached for some seconds."""
    limit = time.monotonic() + _PATIENCE
    while time.monotonic() < limit:
        if file.is_file() and file.stat().st_size == _RATE_BYTES:
            with file.open("rb") as text:
                if text.read(len(token)) == token.encode():
                    return True
        time.sleep(0.2)
    return False
