"""Values from the command line: ``key=value``, ``--key=value``, ``--key value``, and ``--key`` for true."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from primus_core.config.schema import describe
from primus_core.config.source import parse_scalar
from primus_core.config.tree import Leaf, Path, Tree, nest
from primus_core.errors import Origin, Problem
from primus_core.secrets import MASK, is_secret_key

_ASSIGNMENT: Final = re.compile(r"(?:--)?(?P<key>[A-Za-z_][\w.\-]*)=(?P<value>.*)", re.DOTALL)
_OPTION: Final = re.compile(r"--(?P<key>[A-Za-z_][\w.\-]*)")


class Argument(NamedTuple):
    """One setting from the command line."""

    path: Path
    node: Leaf | Tree


def parse_arguments(words: Sequence[str], problems: list[Problem]) -> list[Argument]:
    """The settings in words as a shell gives them. Arguments are counted from 1.

    A word after ``--key`` is its value unless it starts with ``--`` or has the form ``key=value`` itself.
    """
    settings: list[Argument] = []
    index = 0
    while index < len(words):
        word = words[index]
        origin = Origin(f"command line, argument {index + 1}")
        index += 1
        node: Leaf | Tree
        if match := _ASSIGNMENT.fullmatch(word):
            node = parse_scalar(match["value"], origin, problems)
        elif match := _OPTION.fullmatch(word):
            following = words[index] if index < len(words) else "--"
            if following.startswith("--") or _ASSIGNMENT.fullmatch(following):
                node = Leaf(True, origin, origin)
            else:
                node = parse_scalar(following, origin, problems)
                index += 1
        else:
            problems.append(Problem(origin, f"'{word}' is neither key=value nor --key value"))
            continue
        path = tuple(match["key"].split("."))
        if not all(path):
            problems.append(Problem(origin, f"'{match['key']}' is not a key: a part between its dots is empty"))
            continue
        settings.append(Argument(path, node))
    return settings


def lay_over(
    tree: Tree, arguments: Iterable[Argument], problems: list[Problem], show: Callable[[str], str] = str
) -> Tree:
    """The tree with arguments laid over it, in their order. Nothing can be set below a single value."""
    for argument in arguments:
        blocked = next(
            (
                (end, node)
                for end in range(1, len(argument.path))
                if isinstance(node := tree.find(argument.path[:end]), Leaf) and node.value is not None
            ),
            None,
        )
        if blocked:
            end, leaf = blocked
            name, parent = show(".".join(argument.path)), show(".".join(argument.path[:end]))
            value = MASK if is_secret_key(parent) else describe(leaf.value)
            message = f"cannot set '{name}': '{parent}' was set to {value} by {leaf.origin}"
            problems.append(Problem(argument.node.origin, message))
            continue
        tree = tree.merge(nest(argument.path, argument.node))
    return tree


def with_known_name(argument: Argument, knows: Callable[[Path], bool]) -> Argument:
    """The argument with dashes as underscores, where only that name is known."""
    path = tuple(name.replace("-", "_") for name in argument.path)
    return (
        argument._replace(path=path) if path != argument.path and not knows(argument.path) and knows(path) else argument
    )
