"""The engine's trainer, its life told to primus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torchtitan.protocols import train_spec as engine_specs
from torchtitan.tools.logging import init_logger
from torchtitan.train import Trainer

from primus_torchtitan.v02.checkpoints import Checkpoints
from primus_torchtitan.v02.job import job_config
from primus_torchtitan.v02.spec import train_spec

if TYPE_CHECKING:
    from torchtitan.config import JobConfig

    from primus_core.run.context import Run


class PrimusTrainer(Trainer):  # type: ignore[misc]
    """Says what it is doing; computes nothing else than the engine's."""

    def __init__(self, run: Run, job: JobConfig) -> None:
        self.run = run
        super().__init__(job)
        self.checkpointer = Checkpoints(run, self)

    def train(self) -> None:
        self.run.enter("load")
        super().train()

    def should_continue_training(self) -> bool:
        goes_on: bool = super().should_continue_training()
        if not goes_on or not self.step or not self._asked_to_stop():
            return goes_on
        self.checkpointer.save_now(self.step)
        self.run.note(f"stops after step {self.step}, as it was asked to")
        return False

    def state_dict(self) -> dict[str, Any]:
        """With the tokens of all ranks, so that another number of them counts on rightly."""
        return super().state_dict() | {"ntokens_seen": self.ntokens_seen * self._readers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.ntokens_seen //= self._readers

    @property
    def _readers(self) -> int:
        """How many ranks get data of their own."""
        dims = self.parallel_dims
        count: int = dims.dp_replicate * dims.dp_shard
        return count

    def _asked_to_stop(self) -> bool:
        """Whether any rank was."""
        flag = torch.tensor([int(self.run.stop_requested)], device=self.device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag.item())

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        self.run.expect(self.job_config.training.steps, self.step - 1)  # the step has begun
        self.metrics_processor.start(self.step - 1)
        batches = super().batch_generator(data_iterable)
        while True:
            self.run.enter("data", self.step)
            batch = next(batches)
            self.run.enter("forward", self.step)
            yield batch


def train(run: Run) -> None:
    """Train, with the process group that is there, or one that goes when this is done."""
    init_logger()
    given = torch.distributed.is_initialized()
    run.apply_patches("build")
    job = job_config(run)
    spec = train_spec(run, job)
    run.apply_patches("train")
    name = job.model.name
    engine_specs.register_train_spec(name, spec)
    trainer = None
    try:
        trainer = PrimusTrainer(run, job)
        if job.checkpoint.create_seed_checkpoint:
            trainer.checkpointer.save(curr_step=0, last_step=True)
        else:
            trainer.train()
    finally:
        if trainer is not None:
            trainer.close()
        engine_specs._extra_train_specs.pop(name)
    if not given:
        torch.distributed.destroy_process_group()
