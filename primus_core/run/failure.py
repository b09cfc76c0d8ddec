"""``errors/rank-N.json``: what a rank died of, written by the rank itself before anything else can go wrong."""

from __future__ import annotations

import json
import os
import socket
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from primus_core.errors import ExitCode, PrimusError
from primus_core.secrets import scrub

_OWN = str(Path(__file__).parents[1])


def write(
    folder: Path,
    error: BaseException,
    *,
    rank: int,
    phase: str,
    step: int | None,
    owned: Callable[[str], bool] = lambda file: False,
    secrets: Collection[str] = (),
) -> dict[str, Any]:
    """Record ``error`` for primus, for torchrun in its own form, and in the log; returns what was recorded.

    ``owned`` tells whether a source file belongs to a plugin: the innermost frame in one, or in the user's own files,
    is where the reader should look first.
    """
    code = error.exit_code if isinstance(error, PrimusError) else ExitCode.TRAINING_FAILED
    text = scrub("".join(traceback.format_exception(error)), secrets)
    message = scrub(f"{type(error).__name__}: {error}", secrets)
    now = time.time()
    record = {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": now,
        "phase": phase,
        "step": step,
        "kind": type(error).__name__,
        "exit_code": int(code),
        "error": message if not isinstance(error, PrimusError) else scrub(str(error), secrets),
        "frame": frame(error, owned),
        "traceback": text,
        "log_size": os.fstat(1).st_size,
    }
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / f"rank-{rank}.json", record)
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": text, "timestamp": str(int(now))}
        _replace(Path(file), {"message": {"message": message, "extraInfo": extra}})
    sys.stderr.write(text)
    return record


def set_aside(folder: Path, rank: int) -> None:
    """Keep what a rank died of before torchrun started it again out of the way of what it may die of now."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    old = folder / f"rank-{rank}.json"
    if count != "0" and old.exists():
        old.replace(folder / f"restart-{count}-rank-{rank}.json")


def read_all(folder: Path) -> dict[int, dict[str, Any]]:
    """Every rank's error."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank-*.json"))]
    return {record["rank"]: record for record in records}


def frame(error: BaseException, owned: Callable[[str], bool] = lambda file: False) -> str | None:
    """``file:line in function`` of the innermost frame in the user's or a plugin's code, else of the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [entry for entry in frames if owned(entry.filename) or not _is_installed(entry.filename)]
    for entry in reversed(mine or frames):
        return f"{entry.filename}:{entry.lineno} in {entry.name}"
    return None


def _is_installed(file: str) -> bool:
    paths = sysconfig.get_paths()
    folders = (_OWN, paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"])
    return file.startswith(("<", *(folder + os.sep for folder in folders)))


def _replace(path: Path, record: dict[str, Any]) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)
