"""Old names to new ones in a file, in place: nothing else of it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from primus_core.config import layout
from primus_core.config.schema import Schema
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin, Problem


@dataclass(frozen=True, slots=True)
class Rename:
    """A key at a place, its old name there and its new one."""

    place: Origin
    old: str
    new: str


def renames(tree: Tree, schemas: dict[str, Schema], problems: list[Problem]) -> list[Rename]:
    """What has to be renamed in a file, in the order of lines.

    An experiment's ``overrides`` follow the schema of its framework; a file without ``modules`` is a preset, and
    follows the only schema that is given. What cannot be renamed in place goes to ``problems``.
    """
    found = [*_bases(tree)]
    modules = tree.items.get("modules")
    if isinstance(modules, Tree):
        for name, module in modules.items.items():
            framework = module.items.get("framework") if isinstance(module, Tree) else None
            overrides = module.items.get("overrides") if isinstance(module, Tree) else None
            if isinstance(framework, Leaf) and isinstance(overrides, Tree) and name in layout.MODULES:
                schema = schemas.get(str(framework.value)) or (
                    next(iter(schemas.values())) if len(schemas) == 1 and "${" in str(framework.value) else None
                )
                if schema is not None:
                    found += _in(overrides, schema, problems)
    elif len(schemas) == 1:
        found += _in(tree, next(iter(schemas.values())), problems)
    return sorted(set(found), key=lambda rename: rename.place)


def apply(text: str, changes: list[Rename]) -> str:
    """The text with the keys renamed; all else stays byte for byte."""
    lines = text.splitlines(keepends=True)
    for change in reversed(changes):
        row, column = change.place.line - 1, change.place.column - 1
        line = lines[row]
        start = column + (line[column] in "'\"")
        assert line[start:].startswith(change.old), f"'{change.old}' is not at {change.place}"
        lines[row] = line[:start] + change.new + line[start + len(change.old) :]
    return "".join(lines)


def _bases(tree: Tree) -> Iterator[Rename]:
    node = tree.items.get("bases")
    if node is not None and "extends" not in tree.items:
        yield Rename(node.key or node.origin, "bases", "extends")


def _in(tree: Tree, schema: Schema, problems: list[Problem]) -> Iterator[Rename]:
    for old, new in schema.renamed.items():
        path, target = tuple(old.split(".")), tuple(new.to.split("."))
        node = tree.find(path)
        if node is None:
            continue
        place = node.key or node.origin
        if tree.find(target) is not None:
            problems.append(Problem(place, f"'{old}' is now called '{new.to}', which is set too: remove one"))
        elif path[:-1] != target[:-1]:
            problems.append(Problem(place, f"'{old}' is now '{new.to}': move it to that section by hand"))
        else:
            yield Rename(place, path[-1], target[-1])
