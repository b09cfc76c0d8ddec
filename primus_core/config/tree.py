"""Configuration values that remember where they were written and what they replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from primus_core.errors import Origin

type Path = tuple[str, ...]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Leaf(NamedTuple):
    """A scalar or a list. ``key`` is the place of the key, ``origin`` that of the value, ``items`` those of a list.

    ``written`` is what stands in the source where that differs from the value: the text of a number, or the text (or
    list) that held a substitution. ``secret`` says that a secret was substituted into it.
    """

    value: Any
    origin: Origin
    key: Origin
    replaced: Leaf | Tree | None = None
    written: Any = None
    items: tuple[Origin, ...] = ()
    secret: bool = False


class Tree(NamedTuple):
    """A mapping of text keys to leaves and trees, in the order they were first written.

    ``replaced`` is the single value that stood in its place: what is below that does not come back.
    """

    origin: Origin
    items: Mapping[str, Leaf | Tree] = _NOTHING
    key: Origin | None = None
    replaced: Leaf | Tree | None = None

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

    def without(self, *names: str) -> Tree:
        """This tree less some of its own keys."""
        return self._replace(items={name: node for name, node in self.items.items() if name not in names})

    def merge(self, stronger: Tree) -> Tree:
        """This tree with ``stronger`` laid over it: mappings deep, all else replaced whole.

        Associative; ``Tree.merge(t, t)`` has the values of ``t``.
        """
        merged: dict[str, Leaf | Tree] = dict(self.items)
        for name, node in stronger.items.items():
            old = merged.get(name)
            if old is None:
                merged[name] = node
            elif isinstance(old, Tree) and isinstance(node, Tree) and node.replaced is None:
                merged[name] = old.merge(node)
            else:
                merged[name] = node._replace(replaced=_below(node, old))
        top = stronger if stronger.items else self
        return Tree(top.origin, merged, top.key, self.replaced)


def nest(path: Path, node: Leaf | Tree) -> Tree:
    """The tree that holds nothing but ``node`` at ``path``."""
    origin = node.origin
    for name in reversed(path):
        node = Tree(origin, {name: node}, origin)
    assert isinstance(node, Tree)
    return node


def merge_all(trees: Iterable[Tree], origin: Origin) -> Tree:
    """Trees laid over each other, weakest first."""
    merged = Tree(origin)
    for tree in trees:
        merged = merged.merge(tree)
    return merged


def _below(node: Leaf | Tree, old: Leaf | Tree) -> Leaf | Tree:
    """What ``node`` replaced, with ``old`` under the oldest of it."""
    below = node.replaced
    return old if below is None else below._replace(replaced=_below(below, old))
