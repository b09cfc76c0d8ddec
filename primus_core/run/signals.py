"""What a worker does on signals: SIGUSR1 asks it to stop after this step, SIGUSR2 to show where it stands.

SIGTERM keeps its meaning, the end at once: torchrun sends it when another rank has failed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path

FOLDER = "hang"
"""In the attempt's folder: what ranks showed of themselves."""


class Stop:
    """Whether this rank was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGUSR1, self._request)

    def _request(self, number: int, frame: object) -> None:
        self.requested = True


def show_on_request(attempt: Path, rank: int) -> None:
    """From now on SIGUSR2 writes the stacks of all threads into the log, and collectives into ``hang/rank-N.json``.

    Both work while the main thread waits in C++, where no Python handler would run: the stacks are written by
    ``faulthandler``, the collectives by a thread that the signal wakes up through a pipe.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)
    target = attempt / FOLDER / f"rank-{rank}.json"
    threading.Thread(target=_watch, args=(woken, target), name="primus-signals", daemon=True).start()


def _watch(woken: int, target: Path) -> None:
    while numbers := os.read(woken, 64):
        if signal.SIGUSR2 in numbers and (text := collectives()):
            target.parent.mkdir(exist_ok=True)
            new = target.with_suffix(".new")
            new.write_bytes(text)
            new.replace(target)


def collectives() -> bytes | None:
    """What torch's flight recorder knows of collectives, as JSON; None where there is nothing of the kind."""
    recorder = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if dump := getattr(recorder, name, None):
            text: bytes | str = dump()
            raw = text.encode() if isinstance(text, str) else text
            if json.loads(raw).get("pg_status"):
                return raw
    return None
