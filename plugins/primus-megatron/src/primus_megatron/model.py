"""Which model Megatron builds, and what it is trained for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.utils import get_attr_wrapped_model
from megatron.training import get_args
from megatron.training.argument_utils import gpt_config_from_args, hybrid_config_from_args
from megatron.training.utils import is_hybrid_model

from primus_megatron.data import batch
from primus_megatron.patches.survive import guard

if TYPE_CHECKING:
    from primus_core.run.context import Run

_SPIKE = 10  # a loss this many times the largest so far makes the engine compute the step again


def model_config(args: argparse.Namespace, run: Run) -> Any:
    """Megatron's description of the model; plugins see each chunk of it before it is wrapped for training."""
    config = _hybrid_config(args) if is_hybrid_model(args) else _gpt_config(args)

    def look(chunks: list[Any]) -> list[Any]:
        for chunk in chunks:
            run.model_built(chunk)
        return chunks

    config.pre_wrap_hooks.append(look)
    return config


def model_provider(run: Run) -> Callable[..., Any] | None:
    """What builds a chunk of the model where a plugin registered one under its name; None: Megatron does."""
    build = run.builder(run.model) if run.model else None
    if build is None:
        return None

    def provide(**chunk: Any) -> Any:
        model = build(run, **chunk)
        run.model_built(model)
        return model

    return provide


def _gpt_config(args: argparse.Namespace) -> Any:
    config = gpt_config_from_args(args)
    config.rope_scaling_factor = args.rope_scaling_factor  # the engine leaves it at 8, whatever the argument says
    return config


def _hybrid_config(args: argparse.Namespace) -> Any:
    config = hybrid_config_from_args(args)
    if args.transformer_impl == "local":
        from primus_megatron.hybrid import local_stack_spec

        config.hybrid_stack_spec = local_stack_spec(bool(args.qk_layernorm))
    return config


def forward_step(run: Run, iterator: Iterator[Any] | None, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """One micro batch forward: the losses of its tokens, [micro batch, tokens], and what makes one loss of them."""
    run.enter("data")
    values = batch(iterator, get_attr_wrapped_model(model, "vp_stage"))
    run.enter("forward")
    output = model(
        values["tokens"],
        values["position_ids"],
        values["attention_mask"],
        labels=values["labels"],
        loss_mask=values["loss_mask"],
        packed_seq_params=values["packed"],
    )
    return output, partial(loss, run, values["loss_mask"])


def loss(
    run: Run, mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The sum over the tokens that count, their number, and both for the log. Megatron divides one by the other."""
    args, machine = get_args(), get_rerun_state_machine()
    weights = mask.flatten().float()
    total = (losses.flatten().float() * weights).sum()
    tokens = weights.sum().to(torch.int)
    if judge := guard(run):
        judge.add(total, tokens)
    if args.check_for_nan_in_loss_and_grad:
        for bad, what in ((torch.isnan, "found NaN in the loss"), (torch.isinf, "found an infinite loss")):
            machine.validate_result(total, bad, what, tolerance=0.0, fatal=True)
    if args.check_for_spiky_loss:
        spiky = partial(machine.is_unexpectedly_large, threshold=_SPIKE, context="loss")
        machine.validate_result(total, spiky, "the loss jumped", tolerance=0.0, fatal=False)
    return total, tokens, {"lm loss": torch.stack([total.detach(), tokens.float()])}
