"""Reading values and complaining about them, as the checks of plugins do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_core.config.values import Values

if TYPE_CHECKING:
    from tests.config.conftest import Toy


def test_values_know_their_place_and_who_set_them(toy: Toy) -> None:
    toy.experiment("lr: 1\ntrain: {steps: 3, micro_batch_size: 8}\n")
    values = Values(toy.resolve("exp.yaml", "bf16=true"))
    assert (values["lr"], values["train.steps"], values["nothing"]) == (1.0, 3, None)
    assert (values.size("train.micro_batch_size"), values.size("nothing")) == (8, 1)
    assert values.largest("train.steps", "train.micro_batch_size") == "train.micro_batch_size"
    assert [values.by_user(key) for key in ("lr", "bf16", "num_layers", "train_iters")] == [True, True, False, False]
    assert str(values.problem("train.steps", "too few")) == "exp.yaml:7:22: train.steps: too few"
    assert values.problem("lr", "high", "notice").severity == "notice"
