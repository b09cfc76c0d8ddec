"""``ranks/rank-N.json``: where a rank stands, so that others can tell when it is dead or stuck."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any


class Heartbeat:
    """Rewrites a rank's file in place at every change of phase or step: two microseconds, no rename.

    The text is padded to one length, so that a reader sees the old or the new text.
    """

    _SIZE = 512

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"rank-{rank}.json", os.O_WRONLY | os.O_CREAT, 0o644)
        self._fixed = {"rank": rank, "world_size": world_size, "pid": os.getpid(), "host": socket.gethostname()}
        self.rank = rank
        self.phase = "start"
        self.step: int | None = None
        self.stops = False
        self.beat()

    def can_stop(self) -> None:
        """Tell that this rank stops in order when SIGUSR1 asks it to."""
        self.stops = True
        self.beat()

    def beat(self, phase: str | None = None, step: int | None = None) -> None:
        """Set what is given, keep the rest."""
        self.phase = phase if phase is not None else self.phase
        self.step = step if step is not None else self.step
        state = self._fixed | {"phase": self.phase, "step": self.step, "stops": self.stops}
        state["time"] = round(time.time(), 3)
        os.pwrite(self._file, (json.dumps(state).ljust(self._SIZE - 1) + "\n").encode(), 0)


def read_all(folder: Path) -> dict[int, dict[str, Any]]:
    """Every rank's last state."""
    states = {}
    for path in sorted(folder.glob("rank-*.json")):
        text = path.read_text(encoding="utf-8")
        if text.strip():
            state = json.loads(text)
            states[state["rank"]] = state
    return states
