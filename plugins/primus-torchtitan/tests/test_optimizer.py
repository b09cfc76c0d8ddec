"""Weight decay of matrices alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DECAY = {"weight_decay": 0.5, "lr": 1e-2}


def losses(heard: dict[str, Any]) -> list[float]:
    return [step["loss"] for step in heard["steps"]]


@pytest.mark.slow
def test_norms_do_not_decay_and_runs_go_on_exactly(trained: Callable[..., Any], tmp_path: Path) -> None:
    matrices = {"optimizer": DECAY | {"decay_norms_and_biases": False}, "lr_scheduler": {"warmup_steps": 0}}
    saved = {"checkpoint": {"enable": True, "interval": 2, "last_save_model_only": False}, "folder": str(tmp_path)}
    heard = trained(
        1,
        {
            "all": {"optimizer": DECAY, "lr_scheduler": {"warmup_steps": 0}},
            "matrices": matrices,
            "first": matrices
            | saved
            | {"training": {"steps": 2}, "lr_scheduler": {"warmup_steps": 0, "total_steps": 4}},
            "second": matrices | saved | {"lr_scheduler": {"warmup_steps": 0, "total_steps": 4}},
        },
    )
    whole = losses(heard["matrices"])
    assert losses(heard["all"])[0] == whole[0]
    assert losses(heard["all"])[1:] != whole[1:]
    assert losses(heard["first"]) + losses(heard["second"]) == whole
