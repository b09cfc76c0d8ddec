"""Mamba-2 in PyTorch, where mamba-ssm is absent: the scan, the convolution before it and the norm after it.

The scan itself is ``primus_megatron.kernels.ssd``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from primus_core.errors import UserError
from primus_megatron.kernels.ssd import ssd


def _precise(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In at least single precision: the scan multiplies many decays."""
    return tuple(tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors)


def chunk_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    initial_states: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    return_final_states: bool = False,
) -> Any:
    """``mamba_chunk_scan_combined`` of mamba-ssm: ``ssd`` with what goes before and after it.

    D [heads] or [heads, p] is the weight of the input itself, z [batch, tokens, heads, p] the gate.
    """
    if seq_idx is not None:
        raise UserError("packed sequences in Mamba layers need mamba-ssm, which is not installed")
    dtype = x.dtype
    x, dt, A, B, C = _precise(x, dt, A, B, C)
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    y, state = ssd(x, dt, A, B, C, chunk_size, initial_states)
    if D is not None:
        y = y + x * (D if D.dim() == 2 else D[:, None])
    if z is not None:
        y = y * F.silu(*_precise(z))
    return (y.to(dtype), state) if return_final_states else y.to(dtype)


def split_conv1d_scan(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    chunk_size: int,
    activation: str = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    seq_idx: torch.Tensor | None = None,
) -> torch.Tensor:
    """``mamba_split_conv1d_scan_combined`` of mamba-ssm without its norm: [batch, tokens, all inputs] to outputs.

    The weight is [channels, width]: a causal convolution over tokens, of each channel for itself.
    """
    heads, width = D.size(0), headdim or D.size(1)
    channels, taps = conv1d_weight.shape
    states = (channels - heads * width) // 2
    z, xbc, dt = zxbcdt.split([heads * width, channels, heads], -1)
    xbc = F.conv1d(xbc.transpose(1, 2), conv1d_weight[:, None], conv1d_bias, padding=taps - 1, groups=channels)
    xbc = {"silu": F.silu, "swish": F.silu}[activation](xbc[..., : zxbcdt.size(1)]).transpose(1, 2)
    x, b, c = xbc.split([heads * width, states, states], -1)
    y = chunk_scan(
        x.unflatten(-1, (heads, width)),
        dt,
        A,
        b.unflatten(-1, (ngroups, -1)),
        c.unflatten(-1, (ngroups, -1)),
        chunk_size,
        D=D,
        z=z.unflatten(-1, (heads, width)),
        dt_bias=dt_bias,
        dt_softplus=True,
        seq_idx=seq_idx,
    )
    return y.flatten(2)


class GatedNorm(torch.nn.Module):
    """RMS norm over groups of channels, gated by ``silu(z)`` before or after; gamma [channels]."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.eps = eps
        self.group = group_size or hidden_size
        self.norm_before_gate = norm_before_gate

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        dtype = x.dtype
        (x,) = _precise(x)
        gate = None if z is None else F.silu(*_precise(z))
        if gate is not None and not self.norm_before_gate:
            x = x * gate
        x = F.rms_norm(x.unflatten(-1, (-1, self.group)), (self.group,), eps=self.eps).flatten(-2) * self.weight
        if gate is not None and self.norm_before_gate:
            x = x * gate
        return x.to(dtype)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Channels are split over the tensor parallel group."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=getattr(self, "tp_group", None) or parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=(metadata or {})["dp_cp_group"],
        )


def true(original: bool) -> bool:
    return True


def scan(original: Callable[..., Any] | None) -> Callable[..., Any]:
    return chunk_scan


def scan_with_convolution(original: Callable[..., Any] | None) -> Callable[..., Any]:
    return split_conv1d_scan


def gated_norm(original: Any) -> type:
    return GatedNorm
