"""Corrections of the engine that hold on every platform."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from primus_core.run.context import Run

type Function = Callable[..., Any]


def scaled_gradients(original: Function) -> Function:
    """Gradients of the mean loss of all tokens, as without pipeline stages and replicas.

    The engine divides the loss by the number of tokens after a pipeline schedule has gone backward, and lets
    replicas average gradients of losses that it divided by the tokens of all replicas already.
    """

    @functools.wraps(original)
    def forward_backward_step(self: Any, *, global_valid_tokens: float, **batch: Any) -> torch.Tensor:
        dims = self.parallel_dims
        if dims.pp_enabled:
            return _pipelined(functools.partial(original, self, **batch), self, global_valid_tokens)
        replicas = dims.dp_replicate if dims.dp_replicate_enabled and not dims.fsdp_enabled else 1
        return original(self, global_valid_tokens=global_valid_tokens / replicas, **batch) / replicas

    return forward_backward_step


def _pipelined(step: Function, trainer: Any, tokens: float) -> torch.Tensor:
    schedule = trainer.pp_schedule
    plain = schedule._loss_fn
    schedule._loss_fn = lambda *args, **kwargs: plain(*args, **kwargs) / tokens
    try:
        loss: torch.Tensor = step(global_valid_tokens=tokens)
    finally:
        schedule._loss_fn = plain
    return loss * tokens if trainer.pp_has_last_stage else loss


def tied_together(original: Function) -> Function:
    """Shard the embedding and the output layer as one group where they share their weights."""
    module = importlib.import_module(original.__module__)

    @functools.wraps(original)
    def apply_fsdp(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(model.model_args, "enable_weight_tying", False):
            return original(model, *args, **kwargs)
        model.output.weight = model.tok_embeddings.weight
        shard = module.fully_shard  # type: ignore[attr-defined]

        def fully_shard(what: Any, **options: Any) -> Any:
            if what is model.tok_embeddings:
                return shard([model.tok_embeddings, model.norm, model.output], **options)
            return None if isinstance(what, list) and model.output in what else shard(what, **options)

        module.fully_shard = fully_shard  # type: ignore[attr-defined]
        try:
            return original(model, *args, **kwargs)
        finally:
            module.fully_shard = shard  # type: ignore[attr-defined]

    return apply_fsdp


def whole_heads(original: Function) -> Function:
    """Reorder a weight whole on each rank: shards of it may end within a head."""

    @functools.wraps(original)
    def permute(self: Any, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(weight, DTensor):
            weight = weight.redistribute(placements=[Replicate()] * weight.device_mesh.ndim)
        permuted: torch.Tensor = original(self, weight, *args, **kwargs)
        return permuted

    return permute


def same_dtype(original: Function) -> Function:
    """The outputs of experts in the dtype of their inputs."""

    @functools.wraps(original)
    def run_experts(w1: Any, b1: Any, w2: Any, b2: Any, limit: float, x: torch.Tensor, *args: Any) -> torch.Tensor:
        return original(w1, b1, w2, b2, limit, x, *args).type_as(x)

    return run_experts


def with_bias(original: Function) -> Function:
    """Set a router's bias too, which else stays what was in memory."""

    @functools.wraps(original)
    def init_weights(self: Any, init_std: float) -> None:
        original(self, init_std)
        if self.gate.bias is not None:
            torch.nn.init.zeros_(self.gate.bias)

    return init_weights


def peak_flops(original: Function, run: Run) -> Function:
    """The peak of the device that primus found, in FLOP/s of bfloat16; on a CPU there is none, so that MFU is 0."""
    known = run.devices[0].peak_flops.get("bf16") if run.devices else None
    if run.platform == "cpu":
        known = float("inf")
    return original if known is None else lambda device_name: known


def validation_data(original: Function, run: Run) -> Function:
    from primus_torchtitan.v02.data import validation_loader

    return functools.partial(validation_loader, run, original)
