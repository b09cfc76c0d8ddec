"""Which distributions are installed, as ``importlib.metadata`` tells it, at a tenth of its price.

That module imports ``email``, ``zipfile``, ``csv`` and more: a quarter of the time of a short command. What is needed
here are three headers and one section of a file; for what is no folder on ``sys.path`` it is still asked.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

_INFO = (".dist-info", ".egg-info")


class Distribution:
    """One installed distribution. ``read`` gives the text of one of its files of metadata, None where it has none."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = read

    @cached_property
    def _headers(self) -> Sequence[tuple[str, str]]:
        text = self._read("METADATA") or self._read("PKG-INFO") or ""
        lines = text.partition("\n\n")[0].splitlines()
        pairs = (line.partition(":") for line in lines if not line.startswith((" ", "\t")))
        return [(name.lower(), value.strip()) for name, _, value in pairs]

    def _header(self, name: str) -> str:
        return next((value for header, value in self._headers if header == name), "")

    @property
    def name(self) -> str:
        """Its name as its author writes it; empty where its metadata are lost."""
        return self._header("name")

    @property
    def version(self) -> str:
        return self._header("version")

    @property
    def requires(self) -> Sequence[str]:
        """What it needs, as requirements."""
        return [value for header, value in self._headers if header == "requires-dist"]

    def has_entry_points(self, group: str) -> bool:
        """Whether it has a section of this name, well-formed or not."""
        return f"[{group}]" in (self._read("entry_points.txt") or "")

    def entry_points(self, group: str) -> Sequence[tuple[str, str]]:
        """Names and values of a group. Raises ``ValueError`` with the line that is none."""
        found, section = [], ""
        for number, line in enumerate(map(str.strip, (self._read("entry_points.txt") or "").splitlines()), 1):
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            elif line and not line.startswith(("#", ";")) and section == group:
                name, equals, value = map(str.strip, line.partition("="))
                if not (name and equals and value):
                    raise ValueError(f"line {number}, {line!r}, is not name = module:attribute")
                found.append((name, value))
        return found


def installed() -> Iterator[Distribution]:
    """All distributions on ``sys.path``, in its order; one may come twice."""
    return (distribution for _, distribution in _found())


def version(distribution: str) -> str | None:
    """The version of an installed distribution, None if it is not installed."""
    wanted = normal(distribution)
    for stem, found in _found():
        if normal(stem).startswith(wanted) and normal(found.name) == wanted:
            return found.version
    return None


def normal(distribution: str) -> str:
    """A distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def load_entry_point(value: str) -> Any:
    """What an entry point's value, ``module`` or ``module:attribute``, names."""
    module, _, attributes = value.partition("[")[0].strip().partition(":")
    found: Any = importlib.import_module(module.strip())
    for name in filter(None, attributes.strip().split(".")):
        found = getattr(found, name)
    return found


def _found() -> Iterator[tuple[str, Distribution]]:
    """Distributions, each with the beginning of its folder's name."""
    for place in dict.fromkeys(sys.path):
        try:
            entries = [] if place.endswith(".egg") else list(os.scandir(place or "."))
        except NotADirectoryError:
            entries = []
        except OSError:
            continue
        if not entries:
            yield from _elsewhere(place)
        for entry in entries:
            if entry.name.endswith(_INFO):
                yield entry.name.rpartition(".")[0], Distribution(partial(_read, Path(entry.path)))


def _read(folder: Path, name: str) -> str | None:
    # What distutils left is no folder, but the PKG-INFO itself.
    path = folder if name == "PKG-INFO" and folder.is_file() else folder / name
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return None


def _elsewhere(place: str) -> Iterator[tuple[str, Distribution]]:
    """Those in an archive or an egg."""
    import importlib.metadata

    for distribution in importlib.metadata.distributions(path=[place]):
        found = Distribution(distribution.read_text)
        yield found.name, found
