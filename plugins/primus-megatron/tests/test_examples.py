"""Experiments of the old layout have the values here that they had there, but for what is listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import old_layout
import pytest
import yaml
from old_layout import merged, nested, written

from primus_core.config.check import check
from primus_core.config.experiment import CheckContext
from primus_core.config.resolve import resolve
from primus_core.errors import ConfigError
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Device

PACKAGE = Path(__file__).parents[1] / "src" / "primus_megatron"
OLD = old_layout.load(Path(__file__).parent / "data" / "old_layout.json.gz")
RENAMED = json.loads((PACKAGE / "schemas" / "keys.json").read_text())["renamed"]
CHANGED = yaml.safe_load((PACKAGE / "presets" / "deviations.yaml").read_text())["changed"]

# --- what differs on purpose ---

LORA_EXAMPLE = "configs/MI355X/llama3_8B-BF16-lora-sft.yaml"
"""Its LoRA keys stood where no trainer read them; here they are overrides."""
LORA_VALUES = {
    "lora": {"enabled": True, "dim": 32, "alpha": 32, "dropout": 0.05},
    "lr": 0.0002,
    "min_lr": 2e-05,
    "micro_batch_size": 2,
    "global_batch_size": 256,
    "train_iters": 500,
    "lr_warmup_iters": 20,
}
POSTTRAIN = "configs/MI355X/llama2_70B-FP8-sft-packed-perf.yaml"
"""Fine-tuning that was written as a pre_trainer; here the module says the stage."""
VARIABLES = {
    "CLEAN_DOCKER_CONTAINER",
    "GPU_MAX_HW_QUEUES",
    "HSA_NO_SCRATCH_RECLAIM",
    "LEGACY_GG",
    "NVTE_CK_USES_BWD_V3",
    "PRIMUS_DETERMINISTIC",
    "TURBO_DEEPEEP",
    "TURBO_GROUPED_MLP",
    "USING_AIC",
}
"""Environment variables that one example held among the parameters; here they stand in its ``env``."""


def before(name: str) -> dict[str, Any]:
    """What the old tool merged: model preset < module defaults < overrides, with today's names."""
    old = OLD["examples"][name]
    model = _renamed(nested(OLD["models"][old["model"]]))
    for row in CHANGED:
        if old["model"] in row["models"] and row["key"] != "extends":
            model[row["key"]] = row["is"]
    overrides = {key: value for key, value in old["overrides"].items() if key not in VARIABLES}
    layers = [model, _renamed(nested(OLD["modules"][old["config"]])), _renamed(nested(overrides))]
    if name == LORA_EXAMPLE:
        layers.append(LORA_VALUES)
    # text that a variable's default gave is read as YAML now: `null` is nothing
    return {key: None if value == "null" else value for key, value in merged(*layers).items()}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    new = {RENAMED[key]["to"]: value for key, value in values.items() if key in RENAMED}
    return new | {key: value for key, value in values.items() if key not in RENAMED}


@pytest.mark.parametrize("name", OLD["examples"])
def test_an_old_experiment_has_its_old_values(plugins: PluginManager, name: str) -> None:
    old = OLD["examples"][name]
    experiment = resolve(PACKAGE / "examples" / name, None, [], plugins, environ={})
    assert written(experiment) == before(name)
    assert (experiment.work_group, experiment.user_name) == ("amd", "root")
    assert (experiment.exp_name, str(experiment.workspace)) == (old["exp_name"], "output")
    assert (experiment.model, experiment.preset) == (old["model"], old["config"])
    assert experiment.stage == ("posttrain" if "post" in old["module"] or name == POSTTRAIN else "pretrain")
    assert set(experiment.env.items) == VARIABLES & set(old["overrides"])


def test_all_examples_are_old_ones() -> None:
    files = {str(file.relative_to(PACKAGE / "examples")) for file in (PACKAGE / "examples").rglob("*.yaml")}
    assert {file for file in files if "/_base/" not in file} == set(OLD["examples"])


def test_variables_of_the_old_examples_still_act(plugins: PluginManager) -> None:
    file = PACKAGE / "examples" / "configs" / "MI300X" / "deepseek_v2-BF16-pretrain.yaml"
    environ = {"PRIMUS_PP": "2", "PRIMUS_EXP_NAME": "mine", "PRIMUS_TOKENIZED_DATA_PATH": "/data/tokens"}
    experiment = resolve(file, None, ["--mock_data", "false"], plugins, environ=environ)
    assert experiment.get("pipeline_model_parallel_size") == 2
    assert experiment.get("train_data_path") == "/data/tokens"
    assert experiment.exp_name == "mine"


CANNOT = {
    "exp_pretrain.yaml": "no data",
    "MI355X/llama3.1_8B-MXFP4-pretrain.yaml": "MXFP4 is not part of megatron-core",
    "MI355X/deepseek_v3-BF16-pretrain.yaml": "full needs recompute_method",  # recompute_layer_ids named the layers
    "MI355X/deepseek_v3-FP8-pretrain.yaml": "full needs recompute_method",
} | {
    f"{gpu}/llama3.1_405B-{precision}-pretrain.yaml": "126 layers do not divide by 8"
    for gpu in ("MI300X", "MI325X", "MI355X")
    for precision in ("BF16", "FP8")
}
"""Pre-training that megatron-core cannot do as it is written, and how it says so."""


@pytest.mark.parametrize("name", [name for name, old in OLD["examples"].items() if old["config"] == "pre_trainer"])
def test_pre_training_examples_pass_their_checks_where_they_are_meant_to_run(plugins: PluginManager, name: str) -> None:
    experiment = resolve(PACKAGE / "examples" / name, None, [], plugins, environ={})
    tp, pp, ep = (experiment.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline", "expert"))
    workers = 8
    while workers % (tp * pp) or workers % (pp * ep):
        workers *= 2
    place = CheckContext(
        world_size=workers,
        platform="rocm",
        devices=(Device(name="AMD Instinct", arch="gfx950"),),
        installed={"transformer-engine": "2.9"},
    )
    reason = CANNOT.get(name.removeprefix("configs/"))
    if reason is None:
        check(experiment, place, plugins)
        return
    with pytest.raises(ConfigError) as refused:
        check(experiment, place, plugins)
    assert [reason in problem.message for problem in refused.value.problems] == [True]
