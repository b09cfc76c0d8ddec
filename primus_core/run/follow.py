"""The text of a log, from its last lines on, and what is written into it while the run goes on."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_BLOCK = 1 << 16


def tail(file: Path, lines: int | None) -> tuple[str, int]:
    """The last lines of a file (None: all of it), and the size up to which it was read."""
    with file.open("rb") as log:
        end = log.seek(0, 2)
        start = end if lines is not None else 0
        found = b""
        while lines is not None and start > 0 and found.rstrip(b"\n").count(b"\n") < lines:
            start = max(0, start - _BLOCK)
            log.seek(start)
            found = log.read(end - start)
        if lines is None:
            log.seek(0)
            found = log.read(end)
    text = found.decode("utf-8", errors="replace")
    kept = text.splitlines(keepends=True)
    return "".join(kept if lines is None else kept[len(kept) - min(lines, len(kept)) :]), end


def follow(file: Path, start: int, running: Callable[[], bool], pause: float = 0.2) -> Iterator[str]:
    """What comes behind ``start``, until ``running()`` says no and all is read. A file that was cut starts again."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        last = not running()
        with file.open("rb") as log:
            if start > log.seek(0, 2):
                start = 0
            log.seek(start)
            while block := log.read(_BLOCK):
                start += len(block)
                yield decoder.decode(block)
        if last:
            return
        time.sleep(pause)
