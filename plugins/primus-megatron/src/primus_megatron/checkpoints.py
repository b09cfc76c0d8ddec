"""Which checkpoints of a folder are complete. Files only: imports neither torch nor the engine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"
_COMPLETE = "metadata.json"  # written last into the folder of a distributed checkpoint
_LEGACY = "mp_rank_*"


def folder_of(folder: str | Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return Path(folder) / f"iter_{step:07d}"


def latest(folder: str | Path) -> int | None:
    """The step of the checkpoint that would be loaded; None where there is none, or only one that is released."""
    tracker = Path(folder) / _TRACKER
    text = tracker.read_text(encoding="utf-8").strip() if tracker.exists() else ""
    return int(text) if text.isdecimal() else None


def repair(folder: str | Path) -> list[Path]:
    """Make an interrupted save as if it had not begun; returns what was removed.

    A checkpoint is written into its folder first, then the tracker names it. Folders without their last file that
    the tracker does not name go away; a tracker that was cut off while it was written names the newest complete one.
    """
    folder = Path(folder)
    found = {
        int(match[1]): path for path in folder.glob("iter_*") if (match := re.fullmatch(r"iter_(\d{7,})", path.name))
    }
    tracker = folder / _TRACKER
    if tracker.exists() and not tracker.read_text(encoding="utf-8").strip():
        complete = [step for step, path in found.items() if _is_complete(path)]
        tracker.unlink()
        if complete:
            _replace(tracker, str(max(complete)))
    named = latest(folder)
    broken = [path for step, path in sorted(found.items()) if step != named and not _is_complete(path)]
    for path in broken:
        shutil.rmtree(path)
    return broken


def _is_complete(path: Path) -> bool:
    return (path / _COMPLETE).exists() or any(path.glob(_LEGACY))


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
