"""Experiments to values: layers, presets, stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def test_layers_weakest_first(toy: Toy) -> None:
    toy.experiment("hidden_size: 48\n")
    experiment = toy.resolve("exp.yaml", "lr=1e-4")
    assert experiment.config.plain() == {
        "lr": 1e-4,
        "train_iters": 5,
        "num_layers": 4,
        "save": None,
        "hidden_size": 48,
    }
    assert str(experiment.origin_of("num_layers")) == "toy/models/small.yaml:2:13"
    assert str(experiment.origin_of("lr")) == "command line, argument 1"
    assert experiment.layers["toy/modules/pre_trainer.yaml"] == "module defaults"
