"""A short, stable mark of what a patch replaces, to notice that the engine's code has changed.

It covers the signature and the source as a syntax tree: comments, docstrings and formatting do not count, and the
mark is the same under every Python version. What has no Python source is marked by its signature or kind alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NOT_MEANING = {"ctx", "kind", "type_comment"}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``signature`` for people, ``digest`` (16 hexadecimal digits) over the body; empty where there is no source."""

    signature: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.digest or '-'} {self.signature}"

    def difference(self, now: Fingerprint) -> str:
        """What changed from this one to ``now``, in words; empty when nothing did."""
        if self.signature != now.signature:
            return f"its signature was {self.signature} and is {now.signature}"
        return "" if self.digest == now.digest else f"its body changed; its signature is still {now.signature}"


def fingerprint(target: Any, engine: str | None = None) -> Fingerprint:
    """Mark a function, method, property, class or value. Values count by their type only.

    With the top-level package of the ``engine``, what another package defines counts by its name only: a name that
    the engine imports from torch is the same under every version of torch.
    """
    target = _plain(target)
    if not callable(target):
        return Fingerprint(f"a value of type {type(target).__qualname__}")
    home = getattr(target, "__module__", None) or ""
    if engine and home.partition(".")[0] not in (engine, ""):
        return Fingerprint(f"{home}.{getattr(target, '__qualname__', type(target).__qualname__)}")
    tree = _tree(target)
    if tree is None:
        return Fingerprint(_signature(target))
    return Fingerprint(_written_signature(tree, target), hashlib.sha256(repr(_meaning(tree)).encode()).hexdigest()[:16])


def _plain(target: Any) -> Any:
    """The function inside descriptors, partial objects and wrappers made by decorators."""
    while True:
        if isinstance(target, staticmethod | classmethod):
            target = target.__func__
        elif isinstance(target, functools.partial | functools.cached_property):
            target = target.func
        elif isinstance(target, property) and target.fget:
            target = target.fget
        else:
            return inspect.unwrap(target) if callable(target) else target


def _tree(target: Any) -> ast.AST | None:
    """The syntax tree of the source, or None where there is none."""
    try:
        source = inspect.getsource(target)
    except (OSError, TypeError):
        return None
    try:
        if source[0].isspace():  # dedenting would change texts that span lines
            source = f"if 1:\n{source}"
        statement = ast.parse(source).body[0]
        return statement.body[0] if isinstance(statement, ast.If) else statement
    except SyntaxError:  # a lambda in the middle of an expression
        return ast.Constant(" ".join(source.split()))


def _meaning(node: Any) -> Any:
    """A syntax tree as nested tuples, without docstrings and without fields that are empty or mean nothing."""
    if isinstance(node, list):
        return tuple(map(_meaning, node))
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    if isinstance(node, ast.JoinedStr):  # Python 3.12 puts empty texts behind nested formats
        fields["values"] = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    kept = {name: value for name, value in fields.items() if name not in _NOT_MEANING and value not in (None, [])}
    return (type(node).__name__, *((name, _meaning(kept[name])) for name in sorted(kept)))


def _written_signature(tree: ast.AST, target: Any) -> str:
    """The signature as it stands in the source; of a class, its bases and the arguments of its ``__init__``."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
        return f"({ast.unparse(tree.args)}){returns}"
    if isinstance(tree, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, [*tree.bases, *(keyword.value for keyword in tree.keywords)]))
        makers = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        return f"class({bases})" + (f" with __init__({ast.unparse(makers[-1].args)})" if makers else "")
    return _signature(target)


def _signature(target: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(target)))
    except (TypeError, ValueError):
        return f"{getattr(target, '__qualname__', type(target).__qualname__)}, without a signature"
