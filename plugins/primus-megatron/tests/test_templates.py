"""What ``primus init`` writes for Megatron."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_core.cli.main import main
from primus_core.cli.shipped import models
from primus_core.config.check import check
from primus_core.config.experiment import CheckContext
from primus_core.config.presets import Presets
from primus_core.config.resolve import resolve
from primus_core.plugins.manager import PluginManager

PLUGINS = PluginManager.load()
PRESETS = Presets.of(PLUGINS.backend("megatron"), PLUGINS)
MODELS, _ = models(PRESETS)


def made(tmp_path: Path, *words: str):
    file = tmp_path / "first.yaml"
    assert main(["init", "--backend", "megatron", *words, str(file)]) == 0
    experiment = resolve(file, None, [], PLUGINS, environ={})
    notices = check(experiment, CheckContext(world_size=8, platform="rocm"), PLUGINS)
    return experiment, notices


def test_the_first_experiment_is_small(tmp_path):
    experiment, notices = made(tmp_path)
    assert not notices
    assert experiment.exp_name == "first"
    assert experiment.get("num_layers") <= 4
    assert experiment.get("train_iters") <= 50


@pytest.mark.parametrize("model", MODELS)
def test_every_model_makes_an_experiment_without_problems(tmp_path, model):
    experiment, notices = made(tmp_path, "--model", model)
    assert experiment.model == model
    assert not notices


def test_post_training(tmp_path):
    file = tmp_path / "sft.yaml"
    assert main(["init", "--backend", "megatron", "--stage", "posttrain", "--model", "llama3.2_1B", str(file)]) == 0
    assert resolve(file, "posttrain", [], PLUGINS, environ={}).stage == "posttrain"
