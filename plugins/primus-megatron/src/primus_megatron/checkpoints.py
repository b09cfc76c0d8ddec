"""Which checkpoints of a folder are complete. Files only: imports neither torch nor the engine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from primus_core.errors import UserError

_TRACKER = "latest_checkpointed_iteration.txt"
_LAST_FILES = (".metadata", "metadata.json")  # of the distributed formats, which write them after the tensors

_SIZES = "sizes.json"  # of all files, written by primus when a checkpoint is complete
_OLD = ".old"


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
    for path in (*broken, *folder.glob(f"iter_*{_OLD}")):
        shutil.rmtree(path)
    return broken


@contextmanager
def claimed(folder: str | Path, patience: float = 10.0) -> Iterator[None]:
    """Keep other runs from saving into a folder; the claim ends with this process at the latest, and leaves no file.

    Raises ``UserError`` when another run has it. Where a file system cannot lock folders, nothing is claimed.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY)
    limit = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise UserError(f"save: another run saves into {folder}; give this one another exp_name") from None
                time.sleep(0.2)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(place)


def seal(path: Path) -> None:
    """Write down the sizes of a complete checkpoint's files, so that it can be told from one that was damaged later."""
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    _replace(path / _SIZES, json.dumps(sizes, indent=1) + "\n")


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, as far as names and sizes tell; None if nothing is."""
    if not _is_complete(path):
        return "it was not saved to its end"
    sizes = path / _SIZES
    for name, size in json.loads(sizes.read_text(encoding="utf-8")).items() if sizes.exists() else ():
        file = path / name
        if not file.exists():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return None


def fall_back(folder: str | Path) -> list[str]:
    """Put damaged checkpoints aside, so that the newest good one is loaded; returns what was found, in words.

    Raises ``UserError`` when there are checkpoints and none is good.
    """
    folder = Path(folder)
    named = latest(folder)
    said = []
    for step, path in sorted(_found(folder).items(), reverse=True):
        if named is None or step > named:
            continue
        if (wrong := damage(path)) is None:
            if said:
                _replace(folder / _TRACKER, str(step))
                _set_aside(folder, newer_than=step, until=named)
            return said
        said.append(f"the checkpoint of step {step} cannot be read: {wrong}")
    if said:
        raise UserError("\n".join((*said, f"no checkpoint in {folder} can be read; start anew with another `save`")))
    return []


def _set_aside(folder: Path, newer_than: int, until: int) -> None:
    for step, path in _found(folder).items():
        if newer_than < step <= until:
            aside = path.with_name(f"{path.name}.damaged")
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)


def prune(folder: str | Path, keep: int) -> None:
    """Remove all but the last complete checkpoints. What is half removed no longer has a checkpoint's name."""
    folder = Path(folder)
    named = latest(folder)
    complete = sorted(step for step, path in _found(folder).items() if _is_complete(path) and step <= (named or 0))
    for step in complete[: max(0, len(complete) - keep)]:
        old = folder_of(folder, step).with_suffix(_OLD)
        folder_of(folder, step).rename(old)
        shutil.rmtree(old)


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
