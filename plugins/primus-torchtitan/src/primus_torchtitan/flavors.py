"""Flavors of models: their values as data, and dataclasses of the engine with some fields replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

_HERE = Path(__file__).parent

type Fields = Mapping[str, Any]


@cache
def shipped(version: str = "0.2.2") -> Mapping[str, Mapping[str, Fields]]:
    """``{model: {flavor: {field: value}}}`` of an engine version; fields of inner dataclasses have dots."""
    content: dict[str, Any] = json.loads((_HERE / "schemas" / f"flavors-{version}.json").read_text(encoding="utf-8"))
    models: dict[str, dict[str, Fields]] = content["models"]
    return models


@cache
def own() -> Mapping[str, Mapping[str, Any]]:
    """``{preset: {"name": model, "flavor": its name, "fields": {field: value}}}`` that this plugin adds."""
    presets: dict[str, dict[str, Any]] = json.loads((_HERE / "models" / "flavors.json").read_text(encoding="utf-8"))
    return presets


def with_fields[Args](args: Args, values: Fields) -> Args:
    """A copy of a dataclass with fields replaced, which may be named with dots or stand in mappings.

    An inner dataclass that is None starts from its own defaults. Raises ``KeyError`` for a field that is not there.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            nested[name] = nested.get(name, {}) | value if isinstance(value, Mapping) else value
    known = {field.name for field in fields(args)}  # type: ignore[arg-type]
    if unknown := sorted(set(nested) - known):
        raise KeyError(f"{type(args).__name__} has no {', '.join(unknown)}")
    hints = get_type_hints(type(args))
    for name, value in nested.items():
        if isinstance(value, Mapping):
            inner = getattr(args, name)
            if inner is None:
                inner = next(kind for kind in get_args(hints[name]) if is_dataclass(kind))()
            nested[name] = with_fields(inner, value)
    return replace(args, **nested)  # type: ignore[type-var]
