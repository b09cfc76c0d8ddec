"""Presets and experiments of the old layout have the values here that they had there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import old_layout
import pytest

from primus_core.config.check import check
from primus_core.config.experiment import CheckContext
from primus_core.config.resolve import resolve
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Device

EXAMPLES = Path(__file__).parents[1] / "src" / "primus_torchtitan" / "examples"
OLD = old_layout.load(Path(__file__).parent / "data" / "old_layout.json.gz")

GONE = {"experimental.custom_args_module"}
"""Named a module of Primus that added the keys of Primus-Turbo, which are part of the schema here."""


def before(model: str, overrides: dict[str, Any]) -> dict[str, Any]:
    module = {key: value for key, value in OLD["modules"]["pre_trainer"].items() if key not in GONE}
    return old_layout.merged(*(old_layout.nested(layer) for layer in (OLD["models"][model], module, overrides)))


@pytest.mark.parametrize("name", OLD["examples"])
def test_an_old_experiment_has_its_old_values_and_passes_its_checks(plugins: PluginManager, name: str) -> None:
    old = OLD["examples"][name]
    experiment = resolve(EXAMPLES / name, None, [], plugins, environ={})
    assert old_layout.written(experiment) == before(old["model"], old["overrides"])
    assert (experiment.work_group, experiment.user_name) == ("amd", "root")
    assert (experiment.exp_name, str(experiment.workspace)) == (old["exp_name"], "output")
    assert (experiment.model, experiment.preset, experiment.stage) == (old["model"], old["config"], "pretrain")
    arch = "gfx950" if "MI355X" in name else "gfx942"
    place = CheckContext(
        world_size=8,
        platform="rocm",
        devices=(Device(name="AMD Instinct", arch=arch),) * 8,
        installed={"torchtitan": "0.2.2", "torchao": "0.18.0"},
    )
    check(experiment, place, plugins)


@pytest.mark.parametrize("model", OLD["models"])
def test_an_old_preset_has_its_old_values(plugins: PluginManager, tmp_path: Path, model: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"modules: {{pre_trainer: {{framework: torchtitan, model: {model}.yaml}}}}\n")
    experiment = resolve(file, None, [], plugins, environ={})
    assert old_layout.written(experiment) == before(model, {})
    assert not experiment.notices


def test_all_examples_are_old_ones() -> None:
    files = {file.relative_to(EXAMPLES).as_posix() for file in EXAMPLES.rglob("*.yaml")}
    assert {file for file in files if "/_base/" not in file} == set(OLD["examples"])


def test_a_variable_names_the_experiment(plugins: PluginManager) -> None:
    file = EXAMPLES / "configs" / "MI300X" / "llama3.1_8B-FP8-pretrain.yaml"
    assert resolve(file, None, [], plugins, environ={"PRIMUS_EXP_NAME": "mine"}).exp_name == "mine"
