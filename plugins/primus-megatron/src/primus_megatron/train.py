"""Training with Megatron's own ``pretrain()``. Imported in workers only, after the patches of the import phase."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from megatron.core.enums import ModelType
from megatron.training import pretrain as megatron_pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.global_vars import set_global_variables

from primus_megatron import arguments
from primus_megatron.data import datasets
from primus_megatron.model import forward_step, model_config

if TYPE_CHECKING:
    from primus_core.run.context import Run


def train(run: Run) -> None:
    """Train as ``run.config`` says, in Megatron's argument names."""
    run.apply_patches("build")
    args = arguments.parse(run)
    set_global_variables(args)
    run.apply_patches("train")
    config = pretrain_cfg_container_from_args(args, model_config(args, run))
    megatron_pretrain(config, datasets, ModelType.encoder_or_decoder, partial(forward_step, run))
