"""``${VAR}``, ``${VAR:default}`` and ``${a.b}`` in values.

A name with a dot is a key of the configuration: first of the module's parameters, then of the experiment
(``${optimizer.lr}``, ``${launch.nnodes}``). A name without one is an environment variable if that is set, else such a
key. What follows the first colon is used when there is neither. ``$${`` stands for a literal ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from primus_core.config.source import scalar
from primus_core.config.tree import Leaf, Path, Tree
from primus_core.errors import Origin, Problem
from primus_core.secrets import is_secret_key, is_secret_variable

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


class Failed(Exception):
    """A substitution that could not be made; the problem is noted already."""


def escape(text: str) -> str:
    """Text that stands for itself when it is read again."""
    return text.replace("${", "$${")


class Interpolator:
    """Substitutes in trees. ``roots`` are searched for keys, in this order.

    ``is_text`` tells the paths whose values stay text, whatever they look like, ``is_secret`` those that must not be
    shown. What is wrong goes to ``problems``, and the value that is concerned is left out.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        roots: Sequence[Tree],
        problems: list[Problem],
        is_text: Callable[[Path], bool] = lambda path: False,
        is_secret: Callable[[Path], bool] = lambda path: is_secret_key(path[-1]),
    ) -> None:
        self.environ, self.roots, self.problems = environ, roots, problems
        self.is_text, self.is_secret = is_text, is_secret
        self.chain: list[str] = []
        self.secret = False

    def tree(self, tree: Tree, prefix: Path = ()) -> Tree:
        """The tree with all its values substituted."""
        items: dict[str, Leaf | Tree] = {}
        for name, node in tree.items.items():
            path = (*prefix, name)
            if isinstance(node, Tree):
                items[name] = self.tree(node, path)
            elif not _has_reference(node.value):
                items[name] = node
            else:
                try:
                    items[name] = self.leaf(node, path)
                except Failed:
                    continue
        return tree._replace(items=items)

    def leaf(self, leaf: Leaf, path: Path) -> Leaf:
        """The leaf with its value substituted. Raises ``Failed``."""
        outside, self.secret = self.secret, False
        places = iter(leaf.items)
        name = ".".join(path)
        if isinstance(leaf.value, list):
            value: Any = [self._any(item, next(places, leaf.origin), path, name) for item in leaf.value]
        else:
            value = self._any(leaf.value, leaf.origin, path, name)
        found, self.secret = self.secret, self.secret or outside
        return leaf._replace(value=value, written=leaf.value, secret=found)

    def _any(self, value: Any, origin: Origin, path: Path, name: str) -> Any:
        if isinstance(value, list):
            return [self._any(item, origin, path, name) for item in value]
        if isinstance(value, dict):
            return {key: self._any(item, origin, path, name) for key, item in value.items()}
        return self._text(value, origin, path, name) if isinstance(value, str) else value

    def _text(self, text: str, origin: Origin, path: Path, name: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole and whole["body"] is not None:
            value = self._reference(whole, origin, path, name)
            if isinstance(value, _Raw) and scalar(value.text) is None:
                return None
            if self.is_text(path):
                value = _bare(value)
                return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            return scalar(value.text) if isinstance(value, _Raw) else value
        return _REFERENCE.sub(lambda match: self._inside(match, origin, path, name), text)

    def _inside(self, match: re.Match[str], origin: Origin, path: Path, name: str) -> str:
        if match["body"] is None:
            return "${"
        value = _bare(self._reference(match, origin, path, name))
        if isinstance(value, list | dict):
            self._fail(origin, f"'{name}': '{match['body']}' is a {_kind(value)} and cannot be put into text")
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    def _reference(self, match: re.Match[str], origin: Origin, path: Path, name: str) -> Any:
        body = match["body"]
        if not match["end"]:
            self._fail(origin, f"'{name}': '${{' is not closed; write '$${{' for a literal '${{'")
        reference, colon, default = body.partition(":")
        if not _NAME.fullmatch(reference):
            self._fail(origin, f"'{name}': '{match[0]}' names neither a variable nor a key")
        if "." not in reference and reference in self.environ:
            self.secret |= is_secret_variable(reference)
            return _Raw(self.environ[reference])
        wanted = tuple(reference.split("."))
        for root in self.roots:
            node = root.find(wanted)
            if isinstance(node, Tree):
                self._fail(origin, f"'{name}': '${{{reference}}}' is a mapping; only single values can be taken")
            if isinstance(node, Leaf):
                self.secret |= self.is_secret(wanted)
                return self._value(node, wanted, origin)
        if colon:
            return _Raw(default)
        what = "no such key in the configuration" if "." in reference else "the environment variable is not set"
        return self._fail(origin, f"'{name}': ${{{reference}}}: {what}, and there is no default (${{{reference}:...}})")

    def _value(self, leaf: Leaf, path: Path, origin: Origin) -> Any:
        if not _has_reference(leaf.value):
            return leaf.value
        name = ".".join(path)
        if name in self.chain:
            cycle = " -> ".join([*self.chain[self.chain.index(name) :], name])
            self._fail(origin, f"substitution goes in a circle: {cycle}")
        self.chain.append(name)
        try:
            return self.leaf(leaf, path).value
        finally:
            self.chain.pop()

    def _fail(self, origin: Origin, message: str) -> Any:
        problem = Problem(origin, message)
        if problem not in self.problems:
            self.problems.append(problem)
        raise Failed


class _Raw:
    """Text from outside the configuration, whose type is not decided yet."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _bare(value: Any) -> Any:
    return value.text if isinstance(value, _Raw) else value


def _has_reference(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, dict):
        return any(map(_has_reference, value.values()))
    return any(map(_has_reference, value)) if isinstance(value, list) else False


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "mapping"
