"""Whether a patch is needed: each part of its condition, in words."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Set
from typing import Any, Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from primus_core.plugins.records import Condition, Stage

type Part = tuple[str, bool | None]
"""A part of a condition in words and whether it holds; None where that is not known yet."""


class Context(Protocol):
    """What conditions look at; a ``Run`` is one."""

    @property
    def stage(self) -> Stage: ...
    @property
    def platform(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


def parts(condition: Condition, version: str | None, context: Context | None = None) -> Iterator[Part]:
    """The parts that are given, each as ``("platform is cpu", holds)``."""
    if condition.engine:
        yield f"engine is {condition.engine}", None if version is None else within(version, condition.engine)
    for name in condition.present:
        yield f"{name} is installed", _importable(name)
    for name in condition.missing:
        yield f"{name} is not installed", not _importable(name)
    if condition.platforms:
        words = f"platform is {' or '.join(condition.platforms)}"
        yield words, None if context is None else context.platform in condition.platforms
    if condition.stages:
        words = f"stage is {' or '.join(condition.stages)}"
        yield words, None if context is None else context.stage in condition.stages
    for key, wanted in condition.config.items():
        several = isinstance(wanted, Set)
        words = " or ".join(sorted(map(repr, wanted))) if several else repr(wanted)
        value = None if context is None else _lookup(context.config, key)
        yield f"{key} is {words}", None if context is None else value in wanted if several else value == wanted


def within(version: str, specifiers: str) -> bool:
    """Whether a version, pre-releases and local builds too, is in a range such as ``>=1,<2``."""
    return SpecifierSet(specifiers).contains(Version(version), prereleases=True)


def _importable(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


def _lookup(config: Mapping[str, Any], key: str) -> Any:
    if key in config:
        return config[key]
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
