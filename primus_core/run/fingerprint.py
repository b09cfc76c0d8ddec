"""Fingerprints of the data that a configuration names: cheap for any size, so that a change is seen later."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from primus_core.config.tree import Leaf, Tree

_WHOLE = 1 << 20
_BLOCK = 1 << 16
_BLOCKS = 16
_MOST_READ = 256
_MOST_LISTED = 4096
_WRITTEN = re.compile(r"save|output|out|log|logs|logging|cache|dump|export|tensorboard|wandb|mlflow|profile|trace")
_PAIR = (".bin", ".idx")


def of_config(config: Tree, outputs: Path) -> dict[str, dict[str, Any]]:
    """``{path: {"key": dotted key, "fingerprint": text}}`` of the files and folders that values name.

    Left out are values that are no existing path or prefix of ``.bin/.idx``, keys of what a run writes itself, and
    all that is below ``outputs``. Of more than 256 files the later ones are told by size and time alone.
    """
    named = {path: key for key, path in _paths(config) if not path.absolute().is_relative_to(outputs.absolute())}
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(of_path, named, [index < _MOST_READ for index in range(len(named))])
        return {
            str(path): {"key": key, "fingerprint": text} for (path, key), text in zip(named.items(), texts, strict=True)
        }


def of_path(path: Path, read: bool = True) -> str:
    """What tells a file's or folder's content: its whole hash up to 1 MiB, beyond that one of parts, and its time.

    A folder is told by names, sizes and times of what is in it, or by the contents while they are small.
    """
    if path.is_dir():
        return _of_folder(path)
    try:
        size, time_ = path.stat().st_size, path.stat().st_mtime
        if size <= _WHOLE and read:
            return f"{size} bytes, sha256 {_digest([path.read_bytes()])}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_))
        if not read:
            return f"{size} bytes, written {when}"
        return f"{size} bytes, sha256 of parts {_digest(_parts(path, size))}, written {when}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _of_folder(folder: Path) -> str:
    files = list(islice(_below(folder), _MOST_LISTED))
    lines = (f"{file.relative_to(folder)} {of_path(file, read=len(files) <= 32)}" for file in files)
    digest = _digest(line.encode(errors="surrogateescape") for line in lines)
    return f"{len(files)} files{' or more' * (len(files) == _MOST_LISTED)}, sha256 {digest}"


def _below(folder: Path) -> Iterator[Path]:
    for top, folders, names in folder.walk():
        folders.sort()
        yield from (top / name for name in sorted(names))


def _parts(path: Path, size: int) -> Iterator[bytes]:
    """The first and the last block, and some between them."""
    with path.open("rb") as file:
        for index in range(_BLOCKS):
            file.seek((size - _BLOCK) * index // (_BLOCKS - 1))
            yield file.read(_BLOCK)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _paths(config: Tree) -> Iterator[tuple[str, Path]]:
    for names, leaf in config.leaves():
        if not any(_WRITTEN.fullmatch(word) for word in re.split(r"[_.-]", names[-1])):
            for text in _texts(leaf):
                yield from ((".".join(names), path) for path in _existing(text))


def _texts(leaf: Leaf) -> Iterator[str]:
    """The words of a value: a blend names several, with weights between them."""
    for value in leaf.value if isinstance(leaf.value, list) else [leaf.value]:
        if isinstance(value, str):
            yield from dict.fromkeys([value, *value.split()])


def _existing(text: str) -> Iterator[Path]:
    """The files that a word means; a bare word such as ``local`` means none, whatever lies in the working folder."""
    path = Path(text)
    try:
        if path.is_file() or (path.is_dir() and os.sep in text):
            yield path
        yield from (pair for pair in (Path(text + end) for end in _PAIR) if pair.is_file())
    except (OSError, ValueError):  # no path at all: too long, or with a zero byte
        return
