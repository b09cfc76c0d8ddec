"""What keys there are, and of which types: schema files, and checking trees against them.

A backend ships one ``<engine>-<version>.json`` for each engine version, and a ``keys.json`` with keys of its own
(the form is described in ``docs/architecture.md``).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from primus_core.config.source import scalar
from primus_core.config.tree import Leaf, Path, Tree, nest
from primus_core.errors import EnvironmentFault, Problem
from primus_core.plugins.distributions import version as installed_version
from primus_core.plugins.records import Backend
from primus_core.secrets import MASK, is_secret_key

if TYPE_CHECKING:
    from packaging.version import Version

_WORDS: Final = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "mapping": "a mapping",
}
_PLURAL: Final = {
    "bool": "true and false",
    "int": "whole numbers",
    "float": "numbers",
    "str": "texts",
    "list": "lists",
    "mapping": "mappings",
}
_TRUTH: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


class Key(NamedTuple):
    """One key that may be set. ``types`` are the names used in schema files; no type means anything."""

    name: str
    types: tuple[str, ...] = ()
    nullable: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    items: str | None = None
    group: str = ""
    help: str = ""
    secret: bool | None = None
    no_effect: str = ""
    refused: str = ""
    owner: str = ""

    @property
    def hidden(self) -> bool:
        """Whether its value must not be shown."""
        return is_secret_key(self.name) if self.secret is None else self.secret

    def expected(self) -> str:
        """The types in words."""
        if self.types == ("list",) and self.items:
            words = [f"a list of {_PLURAL[self.items]}"]
        else:
            words = [_WORDS[name] for name in self.types]
        return " or ".join(words + ["null"] * self.nullable)


class Renamed(NamedTuple):
    """A key's new name. From version ``until`` on, the old one is an error."""

    to: str
    since: str = ""
    until: str = ""
    owner: str = ""
    version: str = ""

    @property
    def over(self) -> bool:
        return bool(self.until and self.version) and _order(self.version) >= _order(self.until)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The keys of one engine version, with those that the plugin adds. ``label`` names the engine in messages."""

    engine: str
    version: str
    keys: Mapping[str, Key]
    renamed: Mapping[str, Renamed] = field(default_factory=dict)
    others: Mapping[str, File] = field(default_factory=dict)
    """Schema files of other engine versions."""
    label: str = ""

    @cached_property
    def sections(self) -> frozenset[str]:
        """All proper prefixes of dotted keys."""
        names: set[str] = set()
        for key in self.keys:
            parts = key.split(".")
            names.update(".".join(parts[:end]) for end in range(1, len(parts)))
        return frozenset(names)

    def key(self, path: Path) -> Key | None:
        return self.keys.get(".".join(path))

    def knows(self, path: Path) -> bool:
        """Whether something may be set at ``path``: a key, a section, a renamed key, or inside a free mapping."""
        name = ".".join(path)
        if name in self.keys or name in self.sections or name in self.renamed:
            return True
        return any(self._free(path[:end]) for end in range(1, len(path)))

    def is_text(self, path: Path) -> bool:
        """Whether the value at ``path`` is text, whatever it looks like."""
        key = self.key(path)
        return key is not None and key.types == ("str",)

    def _free(self, path: Path) -> bool:
        key = self.key(path)
        return key is not None and (not key.types or "mapping" in key.types)

    # --- changing trees -------------------------------------------------------------------------------------------

    def rename(self, tree: Tree, problems: list[Problem]) -> Tree:
        """Old names to new ones. Notices what was renamed; setting both is an error, and so is a name that is over."""
        for old, new in self.renamed.items():
            path, target = tuple(old.split(".")), tuple(new.to.split("."))
            node = tree.find(path)
            if node is None:
                continue
            place = node.key or node.origin
            taken = tree.find(target)
            tree = _remove(tree, path)
            if new.over:
                problems.append(Problem(place, f"'{old}' was renamed to '{new.to}'; {new.owner} no longer takes it"))
                continue
            if taken is not None:
                problems.append(
                    Problem(
                        place, f"'{old}' is the old name of '{new.to}', which is set at {taken.key or taken.origin}"
                    )
                )
                continue
            last = f", gone from {new.until} on" if new.until else ""
            problems.append(Problem(place, f"'{old}' is now called '{new.to}'{last} (primus config migrate)", "notice"))
            tree = tree.merge(nest(target, node))
        return tree

    def coerce(self, tree: Tree, prefix: Path = ()) -> Tree:
        """Values as their types want them: numbers at text keys as they were written, whole numbers as floats."""
        items: dict[str, Leaf | Tree] | None = None
        for name, node in tree.items.items():
            path = (*prefix, name)
            if isinstance(node, Tree):
                new: Leaf | Tree = node if self._free(path) else self.coerce(node, path)
            else:
                key = self.key(path)
                new = _coerced(node, key) if key else node
            if new is not node:
                items = dict(tree.items) if items is None else items
                items[name] = new
        return tree if items is None else tree._replace(items=items)

    # --- checking -------------------------------------------------------------------------------------------------

    def check(self, tree: Tree, show: Callable[[str], str] = str) -> list[Problem]:
        """Everything that is wrong with a tree. ``show`` turns a dotted key into what the user calls it."""
        return [*self.unknown_keys(tree, show), *self.wrong_values(tree, show)]

    def unknown_keys(self, tree: Tree, show: Callable[[str], str] = str, prefix: Path = ()) -> Iterator[Problem]:
        """Keys that do not exist."""
        for name, node in tree.items.items():
            path = (*prefix, name)
            dotted = ".".join(path)
            section = dotted in self.sections
            if not section and dotted not in self.keys:
                yield Problem(node.key or node.origin, self._unknown(dotted, show))
            elif "." in name:
                yield Problem(node.key or node.origin, f"unknown key '{show(dotted)}'; write it as {_nested(name)}")
            elif section and isinstance(node, Tree):
                yield from self.unknown_keys(node, show, path)

    def wrong_values(self, tree: Tree, show: Callable[[str], str] = str, prefix: Path = ()) -> Iterator[Problem]:
        """Values that do not fit their keys' types and choices."""
        for name, node in tree.items.items():
            path = (*prefix, name)
            dotted = ".".join(path)
            if "." in name:
                continue
            if (key := self.keys.get(dotted)) is not None:
                yield from self._check_value(key, node, show(dotted))
            elif dotted in self.sections and isinstance(node, Tree):
                yield from self.wrong_values(node, show, path)
            elif dotted in self.sections and isinstance(node, Leaf):
                got = describe(node.value)
                yield Problem(node.origin, f"'{show(dotted)}' is a section with keys of its own, got {got}")

    def _check_value(self, key: Key, node: Leaf | Tree, name: str) -> Iterator[Problem]:
        if isinstance(node, Tree):
            if key.types and "mapping" not in key.types:
                yield Problem(node.origin, f"'{name}': expected {key.expected()}, got a mapping")
            return
        value = node.value
        shown = MASK if isinstance(value, str) and (node.secret or key.hidden) else value
        if value is None:
            if not key.nullable and key.types:
                yield Problem(node.origin, f"'{name}': expected {key.expected()}, got null (nothing)")
        elif key.types and not any(_fits(value, kind) for kind in key.types):
            yield Problem(node.origin, f"'{name}': expected {key.expected()}, got {_got(shown, key.types, node)}")
        elif key.choices and not any(_same(value, choice) for choice in key.choices):
            if not (isinstance(value, list) and all(item in key.choices for item in value)):
                yield Problem(node.origin, f"'{name}': {_not_a_choice(shown, key.choices)}")
        elif isinstance(value, list) and key.items:
            for index, item in enumerate(value):
                if not _fits(item, key.items):
                    place = node.items[index] if index < len(node.items) else node.origin
                    got = "something else" if node.secret or key.hidden else _got(item, (key.items,), node)
                    yield Problem(place, f"'{name}[{index}]': expected {_WORDS[key.items]}, got {got}")

    def _unknown(self, name: str, show: Callable[[str], str]) -> str:
        for version, keys in self._history.items():
            if name in keys:
                newer = _order(version) > _order(self.version)
                upgrade = f"available since {version}: pip install '{self.engine}>={version}'"
                when = upgrade if newer else f"gone after {version}"
                return f"'{show(name)}' is not an option of {self.label or self.engine} ({when})"
        return f"unknown key '{show(name)}'{self.suggestion(name, show)}"

    def suggestion(self, name: str, show: Callable[[str], str] = str) -> str:
        """``; did you mean ...?`` for a name that is not known, or nothing."""
        if name.replace("-", "_") in self.keys:
            return f"; did you mean '{show(name.replace('-', '_'))}'?"
        known = [*self.keys, *self.sections, *self.renamed]
        parent, _, last = name.rpartition(".")
        siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
        close = [siblings[match] for match in difflib.get_close_matches(last, siblings, n=1, cutoff=0.7)]
        close = close or [siblings[key] for key in siblings if len(last) > 3 and key.startswith(last)]
        close = close or [key for key in known if key.rpartition(".")[2] == last]
        close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        return f"; did you mean '{show(close[0])}'?" if close else ""

    @cached_property
    def _history(self) -> Mapping[str, frozenset[str]]:
        """Keys of other versions: newer ones oldest first, then older ones newest first."""
        here = _order(self.version)
        newer = sorted((version for version in self.others if _order(version) > here), key=_order)
        older = sorted((version for version in self.others if _order(version) < here), key=_order, reverse=True)
        return {version: frozenset(_read(self.others[version])["keys"]) for version in [*newer, *older]}


# --- schema files -------------------------------------------------------------------------------------------------


def for_backend(backend: Backend, installed: str | None = None) -> Schema:
    """The schema of a backend for the engine version that is installed, or the nearest one that it supports.

    ``installed`` None: ask this Python environment. Raises ``EnvironmentFault`` when the plugin ships none.
    """
    return _load(backend.schemas, backend.engine, installed or installed_version(backend.engine))


@lru_cache(maxsize=16)
def _load(folder: File, engine: str, installed: str | None) -> Schema:
    files = {file.stem.removeprefix(f"{engine}-"): file for file in folder.glob(f"{engine}-[0-9]*.json")}
    if not files:
        raise EnvironmentFault(f"there is no schema of {engine} in {folder}")
    version = nearest(files, installed)
    content = _read(files[version])
    own = folder / "keys.json"
    contents = [content, *([_read(own)] if own.is_file() else [])]
    renamed = {old: new for each in contents for old, new in _renamed(each).items()}
    others = {name: file for name, file in files.items() if name != version}
    label = f"{engine} {version}"
    return Schema(engine=engine, version=version, keys=_Keys(*contents), renamed=renamed, others=others, label=label)


def nearest(supported: Iterable[str], installed: str | None) -> str:
    """The highest supported version that is not above the installed one; the lowest, or without one the highest."""
    versions = list(supported)
    ordered = sorted(versions, key=_order) if len(versions) > 1 else versions
    if installed is None or len(ordered) == 1:
        return ordered[-1]
    below = [version for version in ordered if _order(version) <= _order(installed)]
    return below[-1] if below else ordered[0]


def _order(version: str) -> Version:
    from packaging.version import Version

    return Version(version)


def schema_of(keys: Mapping[str, Mapping[str, Any]], engine: str, version: str = "0") -> Schema:
    """A schema from keys in the form of schema files."""
    return Schema(engine=engine, version=version, keys=_Keys({"engine": engine, "version": version, "keys": keys}))


def _read(file: File) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"schema file {file} cannot be read: {error}") from error
    return content


class _Keys(Mapping[str, Key]):
    """The keys of schema files, later ones first. A key is made when it is asked for: few of the hundreds are."""

    def __init__(self, *contents: Mapping[str, Any]) -> None:
        self._facts: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._made: dict[str, Key] = {}
        for content in contents:
            owner = f"{content['engine']} {content['version']}"
            self._facts |= {name: (owner, facts) for name, facts in content["keys"].items()}

    def __getitem__(self, name: str) -> Key:
        key = self._made.get(name)
        if key is None:
            key = self._made[name] = _key(name, *self._facts[name])
        return key

    def __contains__(self, name: object) -> bool:
        return name in self._facts

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def _key(name: str, owner: str, facts: Mapping[str, Any]) -> Key:
    kinds = facts.get("type", ())
    return Key(
        name=name,
        types=(kinds,) if isinstance(kinds, str) else tuple(kinds),
        nullable=facts.get("nullable", "default" in facts and facts["default"] is None),
        default=facts.get("default"),
        choices=tuple(facts.get("choices") or ()),
        items=facts.get("items"),
        group=facts.get("group", ""),
        help=facts.get("help") or "",
        secret=facts.get("secret"),
        no_effect=facts.get("no_effect", ""),
        refused=facts.get("refused", ""),
        owner=owner,
    )


def _renamed(content: Mapping[str, Any]) -> dict[str, Renamed]:
    version = content["version"]
    owner = f"{content['engine']} {version}"
    return {
        old: Renamed(to=new["to"], since=new.get("since", ""), until=new.get("until", ""), owner=owner, version=version)
        for old, new in content.get("renamed", {}).items()
    }


# --- values -------------------------------------------------------------------------------------------------------


def describe(value: Any) -> str:
    """A value in words, for messages."""
    if value is None:
        return "null (nothing)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text '{value}'"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "a mapping"


def _nested(name: str) -> str:
    *parents, last = name.split(".")
    return "".join(f"{parent}: {{" for parent in parents) + f"{last}: ..." + "}" * len(parents)


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, {"str": str, "list": list, "mapping": dict}[kind])


def _got(value: Any, types: tuple[str, ...], node: Leaf) -> str:
    got = describe(value)
    if isinstance(value, str):
        read = scalar(value.strip())
        if not isinstance(read, str) and any(_fits(read, kind) for kind in types):
            return f"{got} (quoted?)"
        if "bool" in types and value.lower() in _TRUTH:
            return f"{got}; write {_TRUTH[value.lower()]}"
    if isinstance(value, float) and value.is_integer() and "int" in types and abs(value) < 1e15:
        written = node.written if isinstance(node.written, str) else value
        return f"the number {written}; write {int(value)}"
    if isinstance(value, bool) and "str" in types:
        return f"{got}; write '{got}' in quotes if the text is meant"
    return got


def _same(value: Any, choice: Any) -> bool:
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _not_a_choice(value: Any, choices: tuple[Any, ...]) -> str:
    known = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"'{value}' is not one of {', '.join(known)}{hint}"


def _coerced(leaf: Leaf, key: Key) -> Leaf:
    value = leaf.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return leaf
    if key.types == ("str",) and isinstance(leaf.written, str):
        return leaf._replace(value=leaf.written, written=None)
    if key.types == ("float",) and isinstance(value, int) and abs(value) < 1 << 53:
        return leaf._replace(value=float(value))
    return leaf


def _remove(tree: Tree, path: Path) -> Tree:
    head, *rest = path
    if not rest:
        return tree.without(head)
    below = tree.items[head]
    assert isinstance(below, Tree)
    smaller = _remove(below, tuple(rest))
    if not smaller.items:
        return tree.without(head)
    return tree._replace(items={**tree.items, head: smaller})
