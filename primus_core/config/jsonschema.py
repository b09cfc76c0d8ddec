"""JSON Schema of experiments, for editors: completion, help and red lines while one writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from primus_core.config import layout
from primus_core.config.schema import Key, Schema

_TYPES: Final = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "mapping": "object",
}
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}
_NAMES: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def experiment_schema(schemas: Mapping[str, Schema], models: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """The schema of experiments for backends by name; ``models`` holds the names of their model presets."""
    top = _properties(layout.EXPERIMENT)
    modules = top["properties"]["modules"]["properties"]
    for module in modules.values():
        module["properties"]["framework"] = {"enum": sorted(schemas), "description": "the backend"}
        module["allOf"] = [
            {
                "if": {"properties": {"framework": {"const": name}}, "required": ["framework"] * (len(schemas) > 1)},
                "then": {
                    "properties": {
                        "model": {"examples": sorted(models.get(name, ()))},
                        "overrides": {"$ref": f"#/$defs/{name}"},
                    }
                },
            }
            for name in sorted(schemas)
        ]
    top["properties"] |= {"extends": _NAMES, "bases": {**_NAMES, "deprecated": True}}
    top["properties"]["modules"]["minProperties"] = 1
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "primus experiment",
        **top,
        "anyOf": [{"required": ["modules"]}, {"required": ["extends"]}],
        "$defs": {name: _properties(schema) | {"type": ["object", "null"]} for name, schema in schemas.items()},
    }


def _properties(schema: Schema) -> dict[str, Any]:
    root: dict[str, Any] = _section()
    for name, key in schema.keys.items():
        *parents, last = name.split(".")
        section = root
        for parent in parents:
            section = section["properties"].setdefault(parent, _section())
        section["properties"][last] = _value(key)
    for old, new in schema.renamed.items():
        if "." not in old and not new.over:
            root["properties"][old] = {"deprecated": True, "description": f"now called {new.to}"}
    return root


def _section() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _value(key: Key) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if key.help:
        described["description"] = key.help
    if key.default is not None:
        described["default"] = key.default
    if key.no_effect:
        described["deprecated"] = True
    if not key.types:
        return described
    forms: list[dict[str, Any]] = [_form(kind, key) for kind in key.types] + [{"type": "null"}] * key.nullable
    if key.choices:
        forms = [{"enum": [*key.choices, *([None] if key.nullable else [])]}]
        if "list" in key.types:
            forms.append(_form("list", key) | {"items": {"enum": list(key.choices)}})
    if key.types == ("str",) and not key.choices:
        forms.append({"type": "number"})
    elif not {"str", "mapping"} & set(key.types) or key.choices:
        forms.append(_REFERENCE)
    return described | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _form(kind: str, key: Key) -> dict[str, Any]:
    form: dict[str, Any] = {"type": _TYPES[kind]}
    if kind == "list" and key.items:
        form["items"] = {"anyOf": [{"type": _TYPES[key.items]}, _REFERENCE]}
    return form
