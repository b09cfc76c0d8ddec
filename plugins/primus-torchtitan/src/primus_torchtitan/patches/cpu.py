"""The CPU as a device of the engine: what ``torch.cpu`` lacks, and operations that have no CPU kernel."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from torch.nn.functional import scaled_dot_product_attention

type Function = Callable[..., Any]


class _Cpu(ModuleType):
    """``torch.cpu`` with the functions on memory and properties that accelerators' modules have."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return SimpleNamespace(name="cpu", total_memory=memory)

    def current_device(self) -> int:
        return 0

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {f"{kind}_bytes.all.peak": peak for kind in ("active", "reserved")}

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...
    def empty_cache(self) -> None: ...


def device_type(original: Function) -> Function:
    return lambda: "cpu"


def device_module(original: Function) -> Function:
    cpu = _Cpu("torch.cpu")
    return lambda kind: cpu if kind == "cpu" else original(kind)


def summed(original: Function) -> Function:
    """Gloo cannot scale before it sums: FSDP then scales by itself."""

    def set_gradient_divide_factor(self: Any, factor: float) -> None:
        original(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    return set_gradient_divide_factor


def drawn_whole(original: Function) -> Function:
    """Draw a weight whole, as a single rank would, and keep a shard: DTensor draws all shards alike on a CPU."""

    @functools.wraps(original)
    def draw(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return original(tensor, *args, **kwargs)
        whole = original(torch.empty(tensor.shape, dtype=tensor.dtype), *args, **kwargs)
        shape, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        part = tuple(slice(at, at + size) for at, size in zip(begin, shape, strict=True))
        with torch.no_grad():
            tensor.to_local().copy_(whole[part])
        return tensor

    return draw


def present_activities(original: type) -> type:
    """The engine asks for the activities of an accelerator, which is None here."""

    class Profile(original):  # type: ignore[valid-type,misc]
        def __init__(self, *, activities: Any = None, **kwargs: Any) -> None:
            super().__init__(activities=activities and [each for each in activities if each is not None], **kwargs)

    return Profile


def counted(original: Function) -> Function:
    """``torch.histc`` of whole numbers, one bin for each."""

    @functools.wraps(original)
    def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0, **kwargs: Any) -> torch.Tensor:
        if x.is_floating_point() or x.device.type != "cpu" or (min, max) != (0, bins):
            return original(x, bins=bins, min=min, max=max, **kwargs)
        return torch.bincount(x.flatten(), minlength=bins).to(x.dtype)

    return histc


def without_kernel(original: Function) -> Function:
    """The engine's own plain version of its kernel."""
    return functools.partial(original, use_cpu=True)


def not_compiled(original: Function) -> Function:
    return functools.partial(create_block_mask, device="cpu")


def attention(original: Function) -> Function:
    """Flex attention, which has no backward on the CPU, as masked attention of q, k, v [batch, heads, length, dim]."""

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        block_mask: BlockMask | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
    ) -> Any:
        mask = None if block_mask is None else _dense(block_mask, q, k)
        if not return_lse:
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
        scores = (q @ k.transpose(-2, -1)).float() * (q.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v.float()).to(v.dtype), scores.logsumexp(-1)

    return attend


def _dense(mask: BlockMask, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The mask of [batch, heads, length of q, length of k], made once for all layers."""
    dense: torch.Tensor | None = getattr(mask, "primus_dense", None)
    if dense is None:
        batch, heads = mask.shape[:2]
        dense = create_mask(mask.mask_mod, batch, heads, q.shape[2], k.shape[2], device="cpu")
        mask.primus_dense = dense  # type: ignore[attr-defined]
    return dense
