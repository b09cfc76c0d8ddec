"""What every installed backend keeps to, whatever its engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primus_core.cli import shipped
from primus_core.cli.main import main
from primus_core.config.check import check
from primus_core.config.experiment import CheckContext
from primus_core.config.presets import Presets
from primus_core.config.resolve import resolve
from primus_core.config.schema import for_backend
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend, Stage

PLUGINS = PluginManager.load(environ={})
BACKENDS = {e.record.name: e.record for e in PLUGINS.named("primus_backends").values() if not e.record.tool}
MODELS = [
    pytest.param(name, model, id=f"{name}-{model}")
    for name, backend in BACKENDS.items()
    for model in shipped.models(Presets.of(backend, PLUGINS))[0]
]


def own_keys(backend: Backend) -> dict[str, Any]:
    file = backend.schemas / "keys.json"
    content: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return content


def engine_keys(backend: Backend) -> dict[str, Any]:
    schema = for_backend(backend)
    content: dict[str, Any] = json.loads((backend.schemas / f"{backend.engine}-{schema.version}.json").read_text())
    return dict(content["keys"])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_key_of_the_plugin_acts_does_nothing_or_is_refused(name: str) -> None:
    engine = engine_keys(BACKENDS[name])
    for key, facts in own_keys(BACKENDS[name]).get("keys", {}).items():
        says = [field for field in ("effective", "no_effect", "refused") if field in facts]
        assert len(says) == 1 or (key in engine and not says), key
        assert "default" in facts or key in engine, key


@pytest.mark.parametrize("name", BACKENDS)
def test_new_names_are_known_and_old_ones_are_not_shipped(name: str) -> None:
    schema = for_backend(BACKENDS[name])
    for old, new in own_keys(BACKENDS[name]).get("renamed", {}).items():
        assert new["to"] in schema.keys, old
        assert old not in own_keys(BACKENDS[name])["keys"], old
    for file in shipped_files(BACKENDS[name]):
        assert not [line for line in file.read_text().splitlines() if line.startswith("bases:")], file


def shipped_files(backend: Backend) -> Iterator[Path]:
    for folder in (backend.presets, backend.examples, backend.templates):
        if folder is not None:
            yield from folder.rglob("*.yaml")


@pytest.mark.parametrize(("name", "model"), MODELS)
def test_a_model_makes_an_experiment_without_problems(tmp_path: Path, name: str, model: str) -> None:
    """The preset resolves, nothing in it is renamed or unknown, and it passes the checks on eight GPUs."""
    file = tmp_path / "first.yaml"
    assert main(["init", "--backend", name, "--model", model, str(file)]) == 0
    experiment = resolve(file, None, [], PLUGINS, environ={})
    assert (experiment.backend, experiment.model) == (name, model)
    assert not check(experiment, CheckContext(world_size=8, platform="rocm"), PLUGINS)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_first_experiment_is_for_any_machine(tmp_path: Path, name: str) -> None:
    file = tmp_path / "first.yaml"
    assert main(["init", "--backend", name, str(file)]) == 0
    experiment = resolve(file, None, [], PLUGINS, environ={})
    assert experiment.exp_name == "first"
    for world_size, platform in ((1, "cpu"), (2, "cpu"), (8, "rocm")):
        assert not check(experiment, CheckContext(world_size=world_size, platform=platform), PLUGINS)


STAGES = [(name, stage) for name, backend in BACKENDS.items() for stage in backend.stages]


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_each_stage_has_a_start(tmp_path: Path, name: str, stage: Stage) -> None:
    model = next(model.values[1] for model in MODELS if model.values[0] == name)
    file = tmp_path / "first.yaml"
    assert main(["init", "--backend", name, "--stage", stage, "--model", str(model), str(file)]) == 0
    assert resolve(file, stage, [], PLUGINS, environ={}).stage == stage
