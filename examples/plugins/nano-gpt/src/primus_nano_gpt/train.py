"""Runs in the workers: the engine's loop, with the run told of all that happens."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import distributed as dist

from nano_gpt.settings import Settings
from nano_gpt.trainer import Trainer
from primus_core.run.context import Run


def train(run: Run) -> None:
    place = run.place
    device = "cpu" if run.platform == "cpu" else f"cuda:{place.local_rank}"
    if place.world_size > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
    settings = Settings(**run.config)
    run.apply_patches("build")
    trainer = Trainer(settings, place.rank, place.world_size, device)
    run.model_built(trainer.model)
    trainer.prepare()
    run.apply_patches("train")
    folder = run.folder / "checkpoints"
    if found := sorted(folder.glob("step-*.pt")):
        trainer.load(found[-1])
        run.note(f"goes on after step {trainer.step}")
    run.expect(settings.steps, trainer.step)
    _loop(run, trainer, folder)
    if place.world_size > 1:
        dist.destroy_process_group()


def _loop(run: Run, trainer: Trainer, folder: Path) -> None:
    settings, ranks = trainer.settings, trainer.ranks
    tokens = settings.batch_size * settings.context * ranks
    while trainer.step < settings.steps:
        run.enter("forward", trainer.step + 1)
        began = time.perf_counter()
        loss, norm = trainer.advance()
        seconds = time.perf_counter() - began
        run.report_step(
            trainer.step,
            {
                "loss": loss,
                "grad_norm": norm,
                "lr": settings.lr,
                "tokens": tokens * trainer.step,
                "step_time": seconds,
                "tokens_per_s": tokens / seconds,
                "tokens_per_s_per_device": tokens / seconds / ranks,
            },
        )
        stop = _any(run.stop_requested, trainer)
        due = settings.save_interval and (trainer.step % settings.save_interval == 0 or trainer.step == settings.steps)
        if stop or due:
            _save(run, trainer, folder)
        if stop:
            return


def _save(run: Run, trainer: Trainer, folder: Path) -> None:
    run.enter("save", trainer.step)
    path = folder / f"step-{trainer.step:08}.pt"
    if trainer.rank == 0:
        trainer.save(path)
    if trainer.ranks > 1:
        dist.barrier()
    run.checkpoint_saved(trainer.step, path)


def _any(asked: bool, trainer: Trainer) -> bool:
    """Whether any rank was asked to stop: all must agree, or they wait for each other forever."""
    if trainer.ranks == 1:
        return asked
    total = torch.tensor(float(asked), device=trainer.device)
    dist.all_reduce(total)
    return total.item() > 0
