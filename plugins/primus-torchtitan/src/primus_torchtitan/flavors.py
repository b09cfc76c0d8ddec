"""Flavors of models as data: the engine's, written by ``schema.py``, and those that this plugin adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

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
