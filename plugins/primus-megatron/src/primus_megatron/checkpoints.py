"""Which checkpoints of a folder are complete. Files only: imports neither torch nor the engine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"
_LAST_FILES = (".metadata", "metadata.json")  # of the distributed formats, which write them after the tensors


def folder_of(folder: str | Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return Path(folder) / f"iter_{step:07d}"


def latest(folder: str | Path) -> int | None:
    """The step of the checkpoint that would be loaded; None where there is none, or only a released model."""
    folder = Path(folder)
    tracker = folder / _TRACKER
    if not tracker.exists():
        return None
    text = tracker.read_text(encoding="utf-8").strip()
    if not text:  # cut off while it was written, after the checkpoint
        return max((step for step, path in _found(folder).items() if _is_complete(path)), default=None)
    return int(text) if text.isdecimal() else None


def repair(folder: str | Path) -> list[Path]:
    """Make a save that was cut off as if it had not begun; returns what was removed.

    The engine writes a checkpoint's folder first, its last file last, and then the tracker that names it.
    """
    folder = Path(folder)
    named, tracker = latest(folder), folder / _TRACKER
    if tracker.exists() and not tracker.read_text(encoding="utf-8").strip():
        if named is None:
            tracker.unlink()
        else:
            _replace(tracker, str(named))
    broken = [path for step, path in sorted(_found(folder).items()) if step != named and not _is_complete(path)]
    for path in broken:
        shutil.rmtree(path)
    return broken


def _found(folder: Path) -> dict[int, Path]:
    matches = ((re.fullmatch(r"iter_(\d{7,})", path.name), path) for path in folder.glob("iter_*"))
    return {int(match[1]): path for match, path in matches if match}


def _is_complete(path: Path) -> bool:
    return any((path / name).exists() for name in _LAST_FILES) or any(path.glob("mp_rank_*"))


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def find(path: Path) -> Path | None:
    """The checkpoint that a path is or holds: that of the last step, or a released model. None for other folders."""
    if not path.is_dir():
        return None
    if _is_distributed(path):
        return path
    for folder in (path, path / "checkpoints"):
        tracker = folder / _TRACKER
        if tracker.is_file():
            step = latest(folder)
            return folder / "release" if step is None else folder_of(folder, step)
    return None


def _is_distributed(path: Path) -> bool:
    return (path / "metadata.json").is_file() and (path / ".metadata").is_file()
