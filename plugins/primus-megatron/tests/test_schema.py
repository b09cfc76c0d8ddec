"""The shipped schemas are those of the engine, and say of every old key what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import old_layout

from primus_core.config.schema import for_backend
from primus_core.plugins.manager import PluginManager
from primus_megatron import schema

OWN = json.loads((schema.FOLDER / "keys.json").read_text())
ENGINE = json.loads((schema.FOLDER / "megatron-core-0.19.2.json").read_text())
OLD = old_layout.load(Path(__file__).parent / "data" / "old_layout.json.gz")


def test_old_names_are_not_the_engines() -> None:
    assert not OWN["renamed"].keys() & ENGINE["keys"].keys()


def _old_keys() -> Iterator[tuple[str, Any]]:
    for values in (*OLD["modules"].values(), *OLD["models"].values()):
        yield from values.items()


def test_every_key_of_old_modules_and_models_is_known(plugins: PluginManager) -> None:
    known = for_backend(plugins.backend("megatron"), "0.19.2")
    unknown = {key for key, _ in _old_keys() if not known.knows(tuple(key.split(".")))}
    assert not unknown


def test_defaults_of_keys_without_effect_are_those_of_the_modules() -> None:
    modules = OLD["modules"]["sft_trainer"] | OLD["modules"]["pre_trainer"]
    for name, key in OWN["keys"].items():
        if "no_effect" in key and name in modules and name != "stage":
            assert key["default"] == modules[name], name
