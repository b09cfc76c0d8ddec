"""YAML text to trees that know file, line and column of every key and value.

Scalars follow the YAML 1.2 core schema, on the command line as in files: ``1e-5`` is a number, ``no`` is text, and
so is ``007``: a number does not start with a zero.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin, Problem

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CORE: Final = "tag:yaml.org,2002:"
_PLAIN: Final = "plain"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,999})|0o[0-7]{1,999}|0x[0-9a-fA-F]{1,999}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*|(?=[eE])))([eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DEEPEST: Final = 100
_LARGEST: Final = 100_000
_TAB: Final = re.compile(r"^( *)\t+(?=[^\s#])", re.MULTILINE)


class _Loader(_Base):
    """Composes nodes only; leaves the type of plain scalars to ``scalar``."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else f"{_CORE}str"
        return f"{_CORE}seq" if kind is yaml.SequenceNode else f"{_CORE}map"


def scalar(text: str) -> Any:
    """The value of a plain scalar: None, a bool, an int, a float, or the text itself."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def parse_scalar(text: str, origin: Origin, problems: list[Problem]) -> Leaf | Tree:
    """A value from the command line: a plain scalar, ``[a, b]``, ``{a: 1}`` or quoted text, typed as in a file."""
    stripped = text.strip()
    found: list[Problem] = []
    if stripped[:1] in ("[", "{"):
        node = parse(stripped, origin.source, found, at=origin)
        if not found:
            return node
        problems += (
            problem._replace(message=f"{problem.message} (a value that starts with '{stripped[0]}' is read as YAML)")
            for problem in found
        )
        return Leaf(text, origin, origin)
    if stripped[:1] in ("'", '"'):
        node = parse(stripped, origin.source, found, at=origin)
        return node if isinstance(node, Leaf) and not found else Leaf(text, origin, origin)
    value = scalar(stripped)
    return Leaf(text if isinstance(value, str) else value, origin, origin, written=text)


def read(path: Path, source: str, problems: list[Problem]) -> Tree | None:
    """The mapping in a file, as far as it can be read. ``source`` is how the file is called in messages.

    An empty file is an empty mapping. Whatever is wrong is added to ``problems``; None where nothing could be read.
    """
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        problems.append(Problem(Origin(source), "is a directory, not a YAML file"))
        return None
    except OSError as error:
        problems.append(Problem(Origin(source), f"cannot be read: {error.strerror}"))
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].split(b"\n")
        column = len(before[-1].decode("utf-8", "replace")) + 1
        problems.append(Problem(Origin(source, len(before), column), "is not UTF-8 text"))
        return None
    node = parse(text, source, problems)
    if isinstance(node, Tree):
        return node
    if node.value is not None:
        kind = "a list" if isinstance(node.value, list) else "a single value"
        problems.append(Problem(node.origin, f"expected 'key: value' lines, got {kind}"))
    return None if node.value is not None else Tree(Origin(source, 1, 1))


def parse(text: str, source: str, problems: list[Problem], at: Origin | None = None) -> Leaf | Tree:
    """One YAML document. With ``at``, every origin is that one (a value without lines of its own).

    After an error the part that could be read; a Leaf of None where that is nothing.
    """
    start = at or Origin(source, 1, 1)
    found: list[Problem] = []
    loader = _Loader(text)
    root = None
    try:
        root = loader.get_node() if loader.check_node() else None
        if root is not None and loader.check_node():
            second = loader.get_node()
            if second is not None:
                place = at or Origin(source, second.start_mark.line + 1, second.start_mark.column + 1)
                found.append(Problem(place, "a second document; one file holds one"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = at or (Origin(source, mark.line + 1, mark.column + 1) if mark else start)
        tabs = list(_TAB.finditer(text)) if at is None else []
        found += (
            Problem(
                Origin(source, text.count("\n", 0, tab.start()) + 1, len(tab[1]) + 1),
                "a tab in the indentation; YAML takes spaces only",
            )
            for tab in tabs
        )
        if not any(problem.origin.line == place.line for problem in found):
            about = f" {error.context}" if error.context else ""
            lines = text.split("\n")
            if mark and "flow" in about and "${" in lines[min(mark.line, len(lines) - 1)]:
                about += "; inside [] and {} a ${...} must be in quotes"
            found.append(Problem(place, f"not valid YAML: {error.problem}{about}"))
    except yaml.YAMLError as error:
        found.append(Problem(start, f"not valid YAML: {str(error).splitlines()[0]}"))
    finally:
        loader.dispose()
    builder = _Builder(source, at, found)
    node = builder.node(root, start) if root is not None else Leaf(None, start, start)
    problems += found
    return node


class _Builder:
    """Nodes of PyYAML to leaves and trees."""

    def __init__(self, source: str, at: Origin | None, problems: list[Problem]) -> None:
        self.source, self.at, self.problems = source, at, problems
        self.done: dict[int, Leaf | Tree] = {}
        self.open: set[int] = set()
        self.sizes: dict[int, int] = {}

    def place(self, node: yaml.Node) -> Origin:
        mark = node.start_mark
        return self.at or Origin(self.source, mark.line + 1, mark.column + 1)

    def error(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(self.place(node), message))

    def node(self, node: yaml.Node, key: Origin) -> Leaf | Tree:
        built = self.done.get(id(node))
        if built is not None:
            return built._replace(key=key)
        origin = self.place(node)
        if id(node) in self.open:
            self.error(node, "an alias that refers to itself")
            return Leaf(None, origin, key)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, origin, key)
        if node.tag not in (f"{_CORE}seq", f"{_CORE}map"):
            self.error(node, f"the tag {_tag(node)} is not supported")
        if len(self.open) >= _DEEPEST:
            self.error(node, f"nested more than {_DEEPEST} levels deep")
            return Leaf(None, origin, key)
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            built = Tree(origin, self.mapping(node), key)
        else:
            children = [self.node(child, self.place(child)) for child in node.value]
            values = [child.plain() if isinstance(child, Tree) else child.value for child in children]
            built = Leaf(values, origin, key, items=tuple(child.origin for child in children))
        self.open.discard(id(node))
        below = [child for pair in node.value for child in (pair if isinstance(pair, tuple) else (pair,))]
        size = self.sizes[id(node)] = 1 + sum(self.sizes.get(id(child), 1) for child in below)
        if size > _LARGEST:
            self.error(node, f"aliases make more than {_LARGEST} values of it")
            built = Leaf(None, origin, key)
            self.sizes[id(node)] = 1
        self.done[id(node)] = built
        return built

    def scalar(self, node: yaml.ScalarNode, origin: Origin, key: Origin) -> Leaf:
        text, tag = node.value, node.tag
        if tag == f"{_CORE}str":
            return Leaf(text, origin, key)
        value = scalar(text)
        if tag != _PLAIN and tag not in _TAGS.get(type(value), ()):
            self.error(node, f"the tag {_tag(node)} does not fit '{text}'" if tag in _KNOWN else _unsupported(node))
        if tag == f"{_CORE}float" and isinstance(value, int):
            value = float(value)
        return Leaf(value, origin, key, written=None if isinstance(value, str) else text)

    def mapping(self, node: yaml.MappingNode) -> dict[str, Leaf | Tree]:
        own: dict[str, Leaf | Tree] = {}
        merged: dict[str, Leaf | Tree] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                for name, value in self.merged(value_node).items():
                    merged.setdefault(name, value)
                continue
            key = self.place(key_node)
            value = self.node(value_node, key)
            if not isinstance(key_node, yaml.ScalarNode):
                self.error(key_node, "a key must be text, not a list or a mapping")
            elif key_node.tag == _PLAIN and not isinstance(scalar(key_node.value), str):
                self.error(key_node, f"a key must be text; write '{key_node.value}' in quotes")
            elif key_node.value in own:
                first = own[key_node.value].key
                self.error(
                    key_node, f"duplicate key '{key_node.value}' (first set at line {first.line if first else 0})"
                )
            else:
                own[key_node.value] = value
        return {**merged, **own} if merged else own

    def merged(self, node: yaml.Node) -> dict[str, Leaf | Tree]:
        """What a ``<<`` brings in; of several mappings the first wins."""
        merged: dict[str, Leaf | Tree] = {}
        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            tree = self.node(each, self.place(each))
            if isinstance(tree, Tree):
                merged = {**tree.items, **merged}
            else:
                self.error(each, "'<<' takes a mapping, or a list of them")
        return merged


_TAGS: Final[dict[type, tuple[str, ...]]] = {
    type(None): (f"{_CORE}null",),
    bool: (f"{_CORE}bool",),
    int: (f"{_CORE}int", f"{_CORE}float"),
    float: (f"{_CORE}float",),
}
_KNOWN: Final = frozenset(tag for tags in _TAGS.values() for tag in tags)


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_CORE, "!!")


def _unsupported(node: yaml.Node) -> str:
    return f"the tag {_tag(node)} is not supported"
