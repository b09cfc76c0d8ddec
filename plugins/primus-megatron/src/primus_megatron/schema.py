"""The arguments of the installed engine as a schema file; ``python -m primus_megatron.schema`` writes it."""

from __future__ import annotations

import argparse
import json
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"

_BY_PARSER_TYPE = {
    "moe_freq_type": ["int", "str", "list"],
    "la_freq_type": ["int", "str", "list"],
    "no_rope_freq_type": ["int", "str", "list"],
    "tuple_type": ["str", "list"],
    "_parse_cuda_graph_modules_arg": "str",
}
_ONE_OR_MANY = {"data_path", "train_data_path", "valid_data_path", "test_data_path", "cp_comm_type", "spec"}
"""Lists of the engine for which a single text is what people write."""

_NULL_IS_DEFAULT = {
    "async_save",
    "dist_ckpt_optim_fully_reshardable",
    "dist_ckpt_save_pre_mcore_014",
    "iterations_to_skip",
    "lazy_mpu_init",
    "local_rank",
    "moe_flex_dispatcher_backend",
    "num_query_groups",
    "replication_factor",
    "use_rotary_position_embeddings",
}
"""Keys for which Primus files write null and mean the engine's default."""


def engine_schema() -> dict[str, Any]:
    """All arguments of the installed megatron-core, in the form that ``docs/architecture.md`` describes."""
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_megatron_arguments(parser)
    groups = {action.dest: group.title for group in parser._action_groups for action in group._group_actions}
    defaults = vars(parser.parse_args([]))
    keys = {
        action.dest: _describe(action, defaults[action.dest], groups.get(action.dest)) for action in parser._actions
    }
    return {"engine": "megatron-core", "version": version("megatron-core"), "keys": dict(sorted(keys.items()))}


def path_of(schema: dict[str, Any]) -> Path:
    """Where a schema is kept."""
    return FOLDER / f"{schema['engine']}-{schema['version']}.json"


def text_of(schema: dict[str, Any]) -> str:
    """A schema as a file: one key a line, so that a new engine version shows as a readable difference."""
    head = {name: value for name, value in schema.items() if name != "keys"}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(key)}" for name, key in schema["keys"].items())
    return f'{json.dumps(head)[:-1]}, "keys": {{\n{lines}\n}}}}\n'


def _describe(action: argparse.Action, default: Any, group: str | None) -> dict[str, Any]:
    key: dict[str, Any] = {}
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        key["type"] = "bool"
    else:
        item = _BY_PARSER_TYPE.get(_name(action.type), _name(action.type))
        if action.nargs is None:
            key["type"] = item
        else:
            alone = action.dest in _ONE_OR_MANY or isinstance(default, str | int | float)
            key |= {"type": [item, "list"] if alone else "list", "items": item}
    if action.choices:
        key["choices"] = [choice.name if isinstance(choice, Enum) else choice for choice in action.choices]
    key["default"] = default.name if isinstance(default, Enum) else default
    if default is None or action.dest in _NULL_IS_DEFAULT:
        key["nullable"] = True
    if group:
        key["group"] = group
    return key


def _name(parser_type: Any) -> str:
    name = getattr(parser_type, "__name__", "str")
    return "str" if name == "enum_type_handler" else name


if __name__ == "__main__":
    made = engine_schema()
    path_of(made).write_text(text_of(made))
    print(f"{path_of(made).name}: {len(made['keys'])} keys")
