"""Where files are found that others extend: experiments beside each other, presets in the folders of plugins."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

from primus_core.config.experiment import Layer
from primus_core.config.interpolate import Failed, Interpolator
from primus_core.config.source import read
from primus_core.config.tree import Leaf, Tree, merge_all
from primus_core.errors import Origin, Problem
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend

type Kind = Literal["models", "modules"]

_YAML: Final = (".yaml", ".yml")
_LAYERS: Final[Mapping[Kind | None, Layer]] = {
    None: "experiment",
    "modules": "module defaults",
    "models": "model preset",
}


class File(NamedTuple):
    """A file, what it is called in messages, and whether a plugin ships it."""

    path: Path
    source: str
    shipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Presets:
    """The presets of a backend: its own, those of ``primus_preset_paths`` and of ``primus_models``."""

    backend: Backend
    folders: tuple[Path, ...] = ()
    models: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend, plugins: PluginManager) -> Presets:
        added = (contribution.record for contribution in plugins.contributions("primus_preset_paths"))
        models = {name: c.record.preset for (owner, name), c in plugins.models().items() if owner == backend.name}
        folders = tuple(record.path for record in added if record.backend == backend.name)
        return cls(backend=backend, folders=folders, models=models)

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        return (self.backend.presets, *self.folders)

    def names(self, kind: Kind) -> list[str]:
        """All names of a kind, sorted."""
        found = {
            file.relative_to(folder / kind).with_suffix("").as_posix()
            for folder in self._folders
            for file in (folder / kind).rglob("*.yaml")
        }
        return sorted(found | set(self.models if kind == "models" else ()))

    def find(self, kind: Kind, name: str) -> list[File]:
        """The files of this name, with or without ``.yaml``: none, one, or more than one in a conflict."""
        bare = stem(name)
        if not bare or bare.startswith("/") or ".." in bare.split("/"):
            return []
        files = [File(folder / kind / f"{bare}.yaml", self.source(kind, bare), True) for folder in self._folders]
        if kind == "models" and bare in self.models:
            files.append(File(self.models[bare], self.source(kind, bare), True))
        return [file for file in files if file.path.is_file()]

    def source(self, kind: Kind, name: str) -> str:
        return f"{self.backend.name}/{kind}/{name}.yaml"

    def named(self, file: File, kind: Kind) -> File:
        """A file reached by a path, called as a preset if it is one."""
        path = _real(file.path)
        for folder in self._folders:
            root = _real(folder / kind)
            if path.is_relative_to(root):
                return File(file.path, self.source(kind, path.relative_to(root).with_suffix("").as_posix()), True)
        return file

    def missing(self, kind: Kind, name: str) -> str:
        """The message for a preset that is not there."""
        names = self.names(kind)
        close = difflib.get_close_matches(stem(name), names, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(names)}" if names else ""
        return f"backend '{self.backend.name}' has no {kind[:-1]} preset '{stem(name)}'{hint}"


class Reader:
    """Reads files with all that they extend, each once.

    ``files`` lists them in the order of reading, ``layers`` tells what each was read for.
    """

    def __init__(self, problems: list[Problem], environ: Mapping[str, str]) -> None:
        self.problems = problems
        self.layers: dict[str, Layer] = {}
        self.substitute = Interpolator(environ, (), problems)
        self.files: list[Path] = []
        self.done: dict[tuple[Path, Kind | None], Tree] = {}
        self.chain: list[File] = []

    def experiment(self, file: File) -> Tree:
        """An experiment over what it extends."""
        return self._read(file, None, None)

    def named(self, leaf: Leaf, kind: Kind, presets: Presets, beside: Path) -> Tree:
        """The preset that a value names: a name, or a path that starts with ``./``, ``../`` or ``/``."""
        file = self.locate(leaf, kind, presets, beside)
        return self._read(file, kind, presets) if file else Tree(leaf.origin)

    def locate(self, leaf: Leaf, kind: Kind, presets: Presets, beside: Path) -> File | None:
        """The file of the preset that a value names, or None with a problem noted."""
        name = str(leaf.value)
        if name.startswith(("./", "../", "/")):
            file = _beside(File(beside, str(beside)), name)
            if file is None:
                self.error(leaf.origin, f"there is no preset file '{name}' in {beside.parent}")
            return file
        found = presets.find(kind, name)
        if not found:
            self.error(leaf.origin, presets.missing(kind, name))
            return None
        if len(found) > 1:
            self.error(leaf.origin, f"preset '{stem(name)}' exists twice: {found[0].path} and {found[1].path}")
        return found[0]

    def error(self, origin: Origin, message: str) -> None:
        self.problems.append(Problem(origin, message))

    def _read(self, file: File, kind: Kind | None, presets: Presets | None) -> Tree:
        path = _real(file.path)
        if (path, kind) in self.done:
            return self.done[path, kind]
        tree = read(file.path, file.source, self.problems)
        if path not in self.files:
            self.files.append(path)
        self.layers.setdefault(file.source, _LAYERS[kind])
        if tree is None:
            tree = Tree(Origin(file.source))
        self.chain.append(file)
        parents = [
            self._read(parent, kind, presets)
            for name in self._parents(tree, file.shipped)
            if (parent := self._parent(name, file, kind, presets)) is not None
        ]
        self.chain.pop()
        own = tree.without("extends", "bases")
        merged = merge_all([*parents, own], own.origin) if parents else own
        self.done[path, kind] = merged
        return merged

    def _parents(self, tree: Tree, shipped: bool) -> Iterator[Leaf]:
        """The names that a file extends, each with its place."""
        for key in ("extends", "bases"):
            node = tree.items.get(key)
            if node is None:
                continue
            if key == "bases" and not shipped:
                message = "'bases' is the old name of 'extends' (primus config migrate)"
                self.problems.append(Problem(node.key or node.origin, message, "notice"))
            if isinstance(node, Tree):
                self.error(node.origin, f"'{key}' takes a name, a path or a list of them, got a mapping")
                continue
            try:
                node = self.substitute.leaf(node, (key,))
            except Failed:
                continue
            names = node.value if isinstance(node.value, list) else [node.value]
            for index, name in enumerate(names):
                place = node.items[index] if index < len(node.items) else node.origin
                if isinstance(name, str) and name:
                    yield Leaf(name, place, place)
                elif node.value is not None:
                    self.error(place, f"'{key}' takes names or paths, got {name!r}")

    def _parent(self, leaf: Leaf, file: File, kind: Kind | None, presets: Presets | None) -> File | None:
        name = leaf.value
        parent = _beside(file, name)
        if kind is not None and presets is not None:
            if parent and _same(parent, file) and presets.find(kind, name):
                parent = None
            if parent and file.shipped:
                parent = presets.named(parent, kind)
            if parent is None:
                return self._checked(leaf, self.locate(leaf, kind, presets, file.path))
        elif parent is None:
            close = difflib.get_close_matches(stem(name), _siblings(file), n=1)
            hint = f"; did you mean '{close[0]}.yaml'?" if close else ""
            self.error(leaf.origin, f"there is no file '{name}' to extend beside {file.source}{hint}")
        return self._checked(leaf, parent)

    def _checked(self, leaf: Leaf, parent: File | None) -> File | None:
        """None, with a problem noted, for a file that extends itself in the end."""
        if parent is None or not any(_same(parent, file) for file in self.chain):
            return parent
        start = next(index for index, file in enumerate(self.chain) if _same(parent, file))
        circle = " -> ".join(file.source for file in [*self.chain[start:], self.chain[start]])
        self.error(leaf.origin, f"files extend each other in a circle: {circle}")
        return None


def stem(name: str) -> str:
    """A preset's name without its ending; dots within names stay."""
    return next((name.removesuffix(end) for end in _YAML if name.endswith(end)), name)


def _beside(file: File, name: str) -> File | None:
    """The file that ``name`` means when it stands in ``file``: relative to it, with or without its ending."""
    folder, source = file.path.parent, Path(file.source).parent
    for ending in ("", *_YAML):
        path = folder / f"{name}{ending}"
        if path.is_file():
            return File(path, os.path.normpath(source / f"{name}{ending}"))
    return None


def _real(path: Path) -> Path:
    """Where a path leads; asked many times for few paths."""
    return _resolved(path if path.is_absolute() else Path.cwd() / path)


@cache
def _resolved(path: Path) -> Path:
    return path.resolve()


def _same(one: File, other: File) -> bool:
    return _real(one.path) == _real(other.path)


def _siblings(file: File) -> Iterable[str]:
    return [path.stem for path in file.path.parent.glob("*.y*ml")]
