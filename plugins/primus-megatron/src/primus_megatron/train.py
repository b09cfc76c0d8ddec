"""Training with Megatron's own ``pretrain()``. Imported in workers only, after the patches of the import phase."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.enums import ModelType
from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from megatron.training import pretrain as megatron_pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.global_vars import set_global_variables
from megatron.training.training import destroy_global_state

from primus_core.errors import UserError
from primus_megatron import arguments, checkpoints
from primus_megatron.data import datasets
from primus_megatron.model import forward_step, model_config, model_provider

if TYPE_CHECKING:
    import argparse

    from primus_core.run.context import Run
    from primus_megatron.posttrain.train import FineTuning


def train(run: Run) -> None:
    """Train as ``run.config`` says, in Megatron's argument names. Leaves nothing of it in the engine's modules."""
    run.apply_patches("build")
    args = arguments.parse(run)
    with checkpoints.claimed(args.save) if run.is_reporter and args.save else nullcontext():
        _train(run, args)


def _train(run: Run, args: argparse.Namespace) -> None:
    if run.is_reporter and args.save:
        for path in checkpoints.repair(args.save):
            run.note(f"removed {path}: it was not saved to its end")
        if args.load == args.save:
            for line in checkpoints.fall_back(args.save):
                run.note(f"WARNING: {line}")
    args.iterations_to_skip = sorted({*args.iterations_to_skip, *run.recovery.skip_steps})
    if run.recovery.on_bad_loss:
        args.check_for_nan_in_loss_and_grad = False  # which ends the process at once
    set_global_variables(args)
    run.apply_patches("train")
    provider = model_provider(run)
    config = None if provider else model_config(args, run)
    tuning = _fine_tuning(run, args, config) if run.stage == "posttrain" else None
    container = pretrain_cfg_container_from_args(args, config)
    if run.config.get("disable_last_saving"):
        container.checkpoint.save_interval = 1  # asked at the end only: was the last step saved
    try:
        megatron_pretrain(
            container,
            tuning.datasets if tuning else datasets,
            ModelType.encoder_or_decoder,
            partial(forward_step, run),
            provider,
        )
    except SystemExit as end:  # how the engine ends before its last step: exit_interval, a time limit, a signal
        if end.code:
            raise
    if tuning:
        tuning.finished()
    _forget()


def _forget() -> None:
    destroy_global_state()
    destroy_moe_metrics_tracker()
    MTPLossLoggingHelper.tracker.clear()
    torch.distributed.destroy_process_group()


def _fine_tuning(run: Run, args: argparse.Namespace, config: Any) -> FineTuning:
    from primus_megatron.posttrain.train import FineTuning

    tuning = FineTuning(run, args)
    if config is not None:
        config.pre_wrap_hooks.append(tuning.built)
    elif tuning.lora:
        raise UserError(f"lora: {run.model} is built by a plugin; adapters go on the engine's own models")
    return tuning
