"""Which versions of the core a plugin is made for. Every command asks this, so the usual case imports nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from operator import eq, ge, gt, le, lt
from typing import Any, Final

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {">=": ge, "<=": le, ">": gt, "<": lt, "==": eq}
_PLAIN: Final = re.compile(r"(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)")
_CORE: Final = re.compile(r"primus[-_.]core(?![\w.-])(?:\[[^]]*\])?\s*\(?([^;)]*)", re.IGNORECASE)


def core_versions(requirements: Iterable[str]) -> str:
    """The specifier of ``primus-core`` among a distribution's requirements; nothing where it has none."""
    return next((found[1].strip() for text in requirements if (found := _CORE.match(text))), "")


def contains(specifier: str, version: str) -> bool:
    """Whether a specifier such as ``>=0.1,<0.2`` contains a version."""
    bounds = [_PLAIN.fullmatch(part.strip()) for part in specifier.split(",") if part.strip()]
    if not version or not bounds:
        return True
    if all(bounds) and re.fullmatch(r"\d+(\.\d+)*", version):
        return all(_COMPARE[bound[1]](*_padded(version, bound[2])) for bound in bounds if bound)
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _padded(one: str, other: str) -> tuple[list[int], list[int]]:
    """Release numbers of the same length: ``0.1`` is ``0.1.0``."""
    numbers = [[int(part) for part in text.split(".")] for text in (one, other)]
    length = max(map(len, numbers))
    return numbers[0] + [0] * (length - len(numbers[0])), numbers[1] + [0] * (length - len(numbers[1]))
