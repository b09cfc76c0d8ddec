"""The shipped schema and flavors are those of the engine, and all old keys are known."""

from __future__ import annotations

import json
from pathlib import Path

import old_layout

from primus_core.config.schema import for_backend
from primus_core.plugins.manager import PluginManager
from primus_torchtitan import schema
from primus_torchtitan.checks import JOB_KEYS

OLD = old_layout.load(Path(__file__).parent / "data" / "old_layout.json.gz")


def test_every_key_of_old_modules_models_and_examples_is_known(plugins: PluginManager) -> None:
    known = for_backend(plugins.backend("torchtitan"), "0.2.2")
    layers = [
        *OLD["modules"].values(),
        *OLD["models"].values(),
        *(one["overrides"] for one in OLD["examples"].values()),
    ]
    assert not {key for values in layers for key in values if not known.knows(tuple(key.split(".")))}


def test_keys_of_a_model_are_of_the_job_or_fields_of_a_flavor() -> None:
    (file,) = schema.FOLDER.glob("torchtitan-*.json")
    keys = json.loads(file.read_text())["keys"]
    model = {
        key.removeprefix("model.") for key, facts in keys.items() if key.startswith("model.") and "group" not in facts
    }
    assert model == JOB_KEYS
