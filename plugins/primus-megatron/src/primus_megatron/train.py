"""Training with Megatron's own ``pretrain()``. Imported in workers only, after the patches of the import phase."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.enums import ModelType
from megatron.training import pretrain as megatron_pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.global_vars import set_global_variables
from megatron.training.training import destroy_global_state

from primus_megatron import arguments, checkpoints, model
from primus_megatron.data import datasets

if TYPE_CHECKING:
    from primus_core.run.context import Run


def train(run: Run) -> None:
    """Train as ``run.config`` says, in Megatron's argument names. Can be called again in the same process."""
    run.apply_patches("build")
    args = arguments.parse(run)
    if run.rank == 0 and args.save:
        for path in checkpoints.repair(args.save):
            run.note(f"removed {path.name}: it was not saved to its end")
    set_global_variables(args)
    run.apply_patches("train")
    data, forward_step = _STAGES[run.stage](run)
    config, provider = model.config_and_provider(args, run)
    megatron_pretrain(
        pretrain_cfg_container_from_args(args, config), data, ModelType.encoder_or_decoder, forward_step, provider
    )
    destroy_global_state()
    torch.distributed.destroy_process_group()


def _pretrain(run: Run) -> tuple[Any, Any]:
    """The provider of datasets and the step forward."""
    return datasets, partial(model.forward_step, run)


_STAGES = {"pretrain": _pretrain}
