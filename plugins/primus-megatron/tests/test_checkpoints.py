"""Runs that stop and go on: to the same losses, with other parallel sizes, and after a save that was cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primus_core.errors import UserError
from primus_megatron.checkpoints import fall_back, latest, prune, repair, seal

type Results = dict[str, dict[str, Any]]

SAVED = {"save": "checkpoints", "save_interval": 3}
SHARDED = {"use_distributed_optimizer": True}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
HYBRID = {"hybrid_layer_pattern": "M-M*", "mamba_head_dim": 16, "mamba_state_dim": 16, "mamba_num_groups": 2}
EXPERTS = {
    "num_experts": 4,
    "moe_ffn_hidden_size": 64,
    "moe_token_dispatcher_type": "alltoall",
    "mtp_num_layers": 1,
    "bf16": True,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}


def stop_and_go_on(name: str, values: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Six steps at once, and in two runs of three."""
    shared = values | SAVED | {"folder": str(folder / name)}
    return {name: values, f"{name}, first": shared | {"exit_interval": 3}, f"{name}, second": shared}


def losses(result: dict[str, Any]) -> list[float]:
    return [step["loss"] for step in result["steps"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one(trained: Callable[..., Results], folder: Path) -> Results:
    kinds = {"plain": {}, "sharded": SHARDED, "hybrid": HYBRID, "experts": EXPERTS | SHARDED}
    cases: dict[str, dict[str, Any]] = {}
    for name, values in kinds.items():
        cases |= stop_and_go_on(name, values, folder)
    weights = {"load": str(folder / "plain/checkpoints"), "finetune": True, "train_iters": 2}
    return trained(1, cases | {"weights": weights})


@pytest.fixture(scope="module")
def two(trained: Callable[..., Results], folder: Path, one: Results) -> Results:
    """After ``one``, whose half of a sharded run goes on here with two ranks."""
    cases = stop_and_go_on("two", SHARDED | {"overlap_grad_reduce": True, "overlap_param_gather": True}, folder)
    half = SAVED | {"save": None, "load": str(folder / "sharded/checkpoints"), "ckpt_step": 3}
    cases["tp"] = half | SHARDED | TENSOR
    cases["dp"] = half | SHARDED
    cases["pp"] = half | SHARDED | {"pipeline_model_parallel_size": 2}
    return trained(2, cases)


@pytest.mark.parametrize("name", ["plain", "sharded", "hybrid", "experts"])
def test_goes_on_exactly_on_one_rank(one: Results, name: str):
    assert losses(one[f"{name}, first"]) == losses(one[name])[:3]
    assert losses(one[f"{name}, second"]) == losses(one[name])[3:]


def test_goes_on_exactly_on_two_ranks(two: Results):
    assert losses(two["two, first"]) == losses(two["two"])[:3]
    assert losses(two["two, second"]) == losses(two["two"])[3:]


def test_a_run_that_goes_on_says_so(one: Results):
    second = one["plain, second"]
    assert second["expect"] == [6, 3]
    assert second["notes"][-1] == "goes on after step 3"
    assert [step["tokens"] for step in second["steps"]] == [step * 8 * 64 for step in (4, 5, 6)]


def test_checkpoints_are_announced_when_complete(one: Results, folder: Path):
    checkpoints = folder / "plain/checkpoints"
    assert one["plain, first"]["checkpoints"] == [[3, str(checkpoints / "iter_0000003")]]
    assert one["plain, second"]["checkpoints"] == [[6, str(checkpoints / "iter_0000006")]]
    assert latest(checkpoints) == 6


@pytest.mark.parametrize("split", ["tp", "dp", "pp"])
def test_goes_on_with_other_parallel_sizes(one: Results, two: Results, split: str):
    assert losses(two[split]) == pytest.approx(losses(one["sharded"])[3:], abs=2e-5)


def test_weights_alone_start_at_step_one(one: Results):
    assert [step["step"] for step in one["weights"]["steps"]] == [1, 2]
    assert losses(one["weights"])[0] < losses(one["plain"])[0] - 0.3


# --- saves that were cut off --------------------------------------------------------------------------------------


def checkpoint(folder: Path, step: int, *files: str) -> Path:
    path = folder / f"iter_{step:07d}"
    path.mkdir(parents=True)
    for name in files:
        (path / name).write_text("x")
    return path


def test_repair_removes_what_was_not_saved_to_its_end(tmp_path: Path):
    complete = checkpoint(tmp_path, 3, "__0_0.distcp", ".metadata", "metadata.json")
    old = checkpoint(tmp_path, 2, "mp_rank_00")
    broken = checkpoint(tmp_path, 6, "__0_0.distcp")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    assert repair(tmp_path) == [broken]
    assert complete.exists() and old.exists() and not broken.exists()
    assert latest(tmp_path) == 3


def test_repair_completes_a_tracker_that_was_cut_off(tmp_path: Path):
    checkpoint(tmp_path, 3, ".metadata", "metadata.json")
    checkpoint(tmp_path, 6, ".metadata", "metadata.json")
    (tmp_path / "latest_checkpointed_iteration.txt").touch()
    assert latest(tmp_path) == 6
    assert repair(tmp_path) == []
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "6"


def test_repair_leaves_everything_else_alone(tmp_path: Path):
    (tmp_path / "iter_notes").mkdir()
    (tmp_path / "release").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert repair(tmp_path) == []
    assert latest(tmp_path) is None
    assert repair(tmp_path / "absent") == []


# --- damage, and how many are kept --------------------------------------------------------------------------------


def sealed(folder: Path, *steps: int) -> None:
    for step in steps:
        seal(checkpoint(folder, step, "metadata.json", ".metadata", "__0_0.distcp"))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))


def test_a_truncated_checkpoint_is_passed_over(tmp_path: Path):
    sealed(tmp_path, 2, 4, 6)
    (tmp_path / "iter_0000006/__0_0.distcp").write_text("")
    (tmp_path / "iter_0000004/__0_0.distcp").unlink()
    assert fall_back(tmp_path) == [
        "the checkpoint of step 6 cannot be read: __0_0.distcp has 0 bytes instead of 1",
        "the checkpoint of step 4 cannot be read: __0_0.distcp is missing",
    ]
    assert latest(tmp_path) == 2
    assert {path.name for path in tmp_path.glob("iter_*")} == {
        "iter_0000002",
        "iter_0000004.damaged",
        "iter_0000006.damaged",
    }
    assert fall_back(tmp_path) == []


def test_where_no_checkpoint_is_good_nothing_starts_anew(tmp_path: Path):
    sealed(tmp_path, 2)
    (tmp_path / "iter_0000002/__0_0.distcp").unlink()
    with pytest.raises(UserError, match="can be read; start anew"):
        fall_back(tmp_path)
    assert latest(tmp_path) == 2


def test_the_last_ones_are_kept(tmp_path: Path):
    sealed(tmp_path, 2, 4, 6, 8)
    prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000006", "iter_0000008"]
    prune(tmp_path, 5)
    assert latest(tmp_path) == 8
