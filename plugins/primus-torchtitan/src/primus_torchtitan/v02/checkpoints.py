"""The engine's checkpoints: told to primus, looked at before they are loaded, complete where others read them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import FileSystemReader

from primus_core.errors import UserError
from primus_torchtitan.v02.exports import complete

if TYPE_CHECKING:
    from torchtitan.train import Trainer

    from primus_core.run.context import Run

_MARKS = (".metadata", "model.safetensors.index.json")
"""Files of which a complete checkpoint has one: the engine's own format, and that of Hugging Face."""


class Checkpoints:
    """In the place of the engine's manager, which does the work."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.run = run
        self.trainer = trainer
        self.manager = trainer.checkpointer
        self.options = trainer.job_config.checkpoint
        self._writing: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def load(self, step: int = -1) -> bool:
        if not self.options.enable:
            return False
        folder = Path(self.manager.folder)
        self._repair(folder)
        found = dict(steps(folder))
        step = max(found, default=-1) if step == -1 else step
        if found and step not in found:
            raise UserError(f"checkpoint.load_step: there is no step {step}; there are {', '.join(map(str, found))}")
        if found and (reason := self._unfit(found[step], step)):
            raise UserError(reason)
        loaded: bool = self.manager.load(step)
        if loaded and found:
            first = self.options.initial_load_path or self.options.initial_load_in_hf
            self.run.note(f"goes on after step {step}" + (", not from the initial weights" if first else ""))
            if step >= (last := self.trainer.job_config.training.steps):
                self.run.note(f"nothing is left to do: training.steps is {last}")
        elif loaded:
            self.run.note(f"starts from the weights in {self.options.initial_load_path or 'model.hf_assets_path'}")
        return loaded

    def save(self, curr_step: int, last_step: bool = False) -> None:
        if not self.manager._should_save(curr_step, last_step):
            return
        self.run.enter("save", curr_step)
        with self.trainer.metrics_processor.pause():
            self.announce()  # the engine, too, waits for the one before
            self.manager.save(curr_step, last_step)
            self._writing = curr_step
            if last_step or self.options.async_mode == "disabled":
                self.announce()

    def save_now(self, step: int) -> None:
        """Save all that training needs to go on, if that was not done after this very step."""
        if self.manager._should_save(step):
            return
        interval, self.manager.interval = self.manager.interval, 1
        try:
            self.save(step)
        finally:
            self.manager.interval = interval

    def announce(self) -> None:
        """Wait for the checkpoint that is being written, and tell of it."""
        if self._writing is None:
            return
        step, self._writing = self._writing, None
        self.manager._async_wait()
        path = Path(self.manager.folder) / f"step-{step}"
        if self.run.rank == 0 and (path / _MARKS[1]).exists():
            shutil.rmtree(path / "sharded", ignore_errors=True)  # the same weights once more, as the ranks wrote them
            model, weights = self.trainer.job_config.model, self.manager.states["model"].state_dict()
            if lack := complete(path, model.name, self.trainer.model_args, weights, Path(model.hf_assets_path)):
                self.run.note(f"{path.name} has no config.json: {lack}")
        self.run.checkpoint_saved(step, path)

    def close(self) -> None:
        self.announce()
        self.manager.close()

    def _repair(self, folder: Path) -> None:
        """Remove what an interrupted save left behind: the engine takes a folder that is there for a beginning."""
        if self.run.rank == 0 and folder.is_dir() and not self.manager.load_only:
            done = {path for _, path in steps(folder)}
            for path in folder.glob("step-*"):
                if path not in done:
                    shutil.rmtree(path)
                    self.run.note(f"removed {path.name}: it was not saved to its end")
            if not any(folder.iterdir()):
                folder.rmdir()
        torch.distributed.barrier()

    def _unfit(self, path: Path, step: int) -> str | None:
        """Why training cannot go on from a checkpoint, and what can be done about it."""
        keys = FileSystemReader(path).read_metadata().state_dict_metadata if (path / _MARKS[0]).exists() else {}
        if step and not any(key.startswith("optimizer") for key in keys):
            return (
                f"{path}: holds weights only, from which training cannot go on: take another folder or experiment with "
                "checkpoint.initial_load_path, or an earlier checkpoint.load_step; checkpoint.last_save_model_only: "
                "false saves everything at the end as well"
            )
        if keys and (reason := self._other_model(keys)):
            return f"{path}: is of another model: {reason}; take another exp_name, or sizes of model as they were"
        if not step or "dataloader" in self.options.exclude_from_loading:
            return None
        mine = [*self.trainer.dataloader.state_dict()]
        theirs = [key.removeprefix("dataloader.") for key in keys if key.startswith("dataloader.")]
        ranks = sum(key.startswith("dp_rank_") for key in theirs)
        now = getattr(self.trainer.dataloader, "dp_world_size", 0)
        if set(mine) <= set(theirs) and ranks == now:
            return None
        whose = f"that of {ranks} data-parallel ranks, and there are {now}" if ranks and now else "of other data"
        return (
            f"{path}: its place in the data is {whose}: checkpoint.exclude_from_loading: [dataloader] starts the data "
            "anew; prepared tokens (training.dataset: tokens) can go on with any number of ranks"
        )

    def _other_model(self, there: Mapping[str, Any]) -> str | None:
        """The first weight of this rank's part of the model that a checkpoint lacks, or has in another shape."""
        for name, weight in self.manager.states["model"].state_dict().items():
            if name not in there:
                return f"there is no {name}"
            if isinstance(weight, torch.Tensor) and (shape := tuple(there[name].size)) != tuple(weight.shape):
                return f"{name} is {[*shape]}, and {[*weight.shape]} here"
        return None


def steps(folder: Path) -> Iterator[tuple[int, Path]]:
    """Complete checkpoints, by step."""
    for path in folder.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match and any((path / mark).exists() for mark in _MARKS):
            yield int(match[1]), path
