"""``JobConfig`` and the flavors of the installed engine as data; ``python -m primus_torchtitan.schema`` writes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

FOLDER = Path(__file__).parent / "schemas"
MODELS = ("deepseek_v3", "gpt_oss", "llama3", "llama4", "qwen3")
"""Language models of the engine; its image model has a trainer of its own."""

_NAMES: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}


def engine_schema() -> dict[str, Any]:
    """The keys of ``JobConfig``, and under ``model`` the fields of flavors, which override them."""
    from torchtitan.config import JobConfig

    keys = {name: _describe(hint) | {"default": value} for name, hint, value in fields(JobConfig())}
    for model in MODELS:
        for args in _flavors(model).values():
            for name, hint, _ in fields(args):
                key = _describe(hint) | {"group": "fields of a flavor"}
                keys[f"model.{name}"] = _either(keys.get(f"model.{name}"), key)
    return {"engine": "torchtitan", "version": version("torchtitan"), "keys": dict(sorted(keys.items()))}


def engine_flavors() -> dict[str, Any]:
    """The values of every flavor: ``{"models": {model: {flavor: {field: value}}}}``, fields with dots."""
    models = {
        model: {flavor: {name: value for name, _, value in fields(args)} for flavor, args in _flavors(model).items()}
        for model in MODELS
    }
    return {"version": version("torchtitan"), "models": models}


def fields(instance: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name with dots, type and value of each field of a dataclass, and of those inside it.

    A dataclass that is None has its fields with the value None.
    """
    hints = get_type_hints(instance if isinstance(instance, type) else type(instance))
    for field in dataclasses.fields(instance):
        if field.name.startswith("_"):
            continue
        value = None if isinstance(instance, type) else getattr(instance, field.name)
        inner = [kind for kind in (hints[field.name], *get_args(hints[field.name])) if dataclasses.is_dataclass(kind)]
        if inner:
            yield from fields(inner[0] if value is None else value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hints[field.name], value


def paths() -> dict[Path, str]:
    """The files to ship for the installed engine, and what is to stand in them."""
    schema, flavors = engine_schema(), engine_flavors()
    head = {name: value for name, value in schema.items() if name != "keys"}
    keys = ",\n".join(f"  {json.dumps(name)}: {json.dumps(key)}" for name, key in schema["keys"].items())
    return {
        FOLDER / f"torchtitan-{schema['version']}.json": f'{json.dumps(head)[:-1]}, "keys": {{\n{keys}\n}}}}\n',
        FOLDER / f"flavors-{flavors['version']}.json": json.dumps(flavors, indent=1) + "\n",
    }


def _flavors(model: str) -> dict[str, Any]:
    return dict(import_module(f"torchtitan.models.{model}").get_train_spec().model_args)


def _describe(hint: Any) -> dict[str, Any]:
    """A type as the schema writes it."""
    key: dict[str, Any] = {}
    kinds: list[str] = []
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if kind is NoneType:
            key["nullable"] = True
        elif get_origin(kind) is Literal:
            key["choices"] = list(get_args(kind))
            kinds.append(_NAMES[type(get_args(kind)[0])])
        elif get_origin(kind) is list:
            kinds.append("list")
            if (item := get_args(kind)[0]) in _NAMES:
                key["items"] = _NAMES[item]
        else:
            kinds.append(_NAMES[kind])
    if "float" in kinds and "int" in kinds:
        kinds.remove("int")
    return {"type": kinds[0] if len(kinds) == 1 else kinds} | key


def _either(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """A field that models describe differently takes what any of them takes."""
    if one is None or one == other:
        return other
    kinds = {kind for key in (one, other) for kind in ([key["type"]] if isinstance(key["type"], str) else key["type"])}
    kinds -= {"int"} if "float" in kinds else set()
    choices = [] if "choices" not in one or "choices" not in other else sorted({*one["choices"], *other["choices"]})
    joined = one | other | {"type": sorted(kinds) if len(kinds) > 1 else kinds.pop()}
    joined.pop("choices", None)
    return joined | ({"choices": choices} if choices else {})


if __name__ == "__main__":
    for file, text in paths().items():
        file.write_text(text, encoding="utf-8")
        print(file.name)
