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


def find(name: Any, flavor: Any) -> Fields | None:
    """The fields of a flavor of the engine or of this plugin; None for others."""
    flavors = shipped().get(name, {})
    for added in own().values():
        if (added["name"], added["flavor"]) == (name, flavor):
            return next(iter(flavors.values())) | added["fields"]
    return flavors.get(flavor)


_WORDS = {
    "layers": "n_layers",
    "hidden size": "dim",
    "attention heads": "n_heads",
    "key and value heads": "n_kv_heads",
    "experts": "moe_args.num_experts",
    "experts per token": "moe_args.top_k",
    "vocabulary": "vocab_size",
}


def describe(values: Mapping[str, Any]) -> Mapping[str, object]:
    """The sizes of a model in words: those of its flavor, and what its preset sets in their place."""
    fields = find(values.get("model.name"), values.get("model.flavor")) or {}
    dense = not fields.get("moe_enabled", True)
    sizes = {words: values.get(f"model.{field}", fields.get(field)) for words, field in _WORDS.items()}
    return {words: size for words, size in sizes.items() if size is not None and not (dense and "expert" in words)}
