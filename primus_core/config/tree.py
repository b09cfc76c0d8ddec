"""Configuration values that remember where they were written and what they replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from primus_core.errors import Origin

type Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar or a list. ``key`` is the place of the key, ``origin`` that of the value."""

    value: Any
    origin: Origin
    key: Origin
    replaced: Leaf | Tree | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """A mapping of text keys to leaves and trees, in the order they were first written."""

    origin: Origin
    items: Mapping[str, Leaf | Tree] = field(default_factory=dict)

    def find(self, path: Path) -> Leaf | Tree | None:
        """The node at ``path``, or None."""
        node: Leaf | Tree | None = self
        for name in path:
            node = node.items.get(name) if isinstance(node, Tree) else None
        return node

    def leaves(self, prefix: Path = ()) -> Iterator[tuple[Path, Leaf]]:
        """All leaves with their paths, depth first."""
        for name, node in self.items.items():
            if isinstance(node, Leaf):
                yield (*prefix, name), node
            else:
                yield from node.leaves((*prefix, name))

    def plain(self) -> dict[str, Any]:
        """The values alone, as nested dictionaries."""
        return {name: node.plain() if isinstance(node, Tree) else node.value for name, node in self.items.items()}

    def merge(self, stronger: Tree) -> Tree:
        """This tree with ``stronger`` laid over it: mappings deep, all else replaced whole.

        Associative; ``Tree.merge(t, t)`` has the values of ``t``.
        """
        merged: dict[str, Leaf | Tree] = dict(self.items)
        for name, node in stronger.items.items():
            old = merged.get(name)
            if isinstance(old, Tree) and isinstance(node, Tree):
                merged[name] = old.merge(node)
            elif isinstance(node, Leaf) and old is not None:
                merged[name] = Leaf(node.value, node.origin, node.key, _below(node, old))
            else:
                merged[name] = node
        return Tree(stronger.origin if stronger.items else self.origin, merged)


def _below(node: Leaf, old: Leaf | Tree) -> Leaf | Tree:
    """What ``node`` replaced, with ``old`` under the oldest of it."""
    below = node.replaced
    if not isinstance(below, Leaf):
        return old
    return Leaf(below.value, below.origin, below.key, _below(below, old))
