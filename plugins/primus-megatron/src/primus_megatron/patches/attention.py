"""Core attention by ``torch.nn.functional.scaled_dot_product_attention``, where Transformer Engine is absent."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention

from primus_core.errors import UserError

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)


class SDPAttention(MegatronModule):
    """Query [sq, b, heads, k], key [sk, b, groups, k], value [sk, b, groups, v] to [sq, b, heads * v].

    Keys and values are not repeated for grouped queries, and k may differ from v (latent attention). Packed sequences
    have no batch dimension: [tokens, heads, k]. A mask given by the data (True: hidden) is used as it is; without one
    the mask type of the layer holds, cut to the window of the layer. Raises ``UserError`` for what it cannot do.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
    ) -> None:
        super().__init__(config=config)
        if config.context_parallel_size > 1:
            raise UserError("context_parallel_size: more than 1 needs Transformer Engine, which is not installed")
        if config.softmax_type != "vanilla":
            raise UserError(f"softmax_type: {config.softmax_type} (attention sinks) needs Transformer Engine")
        self.attn_mask_type = attn_mask_type
        self.scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size if windowed else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        if attention_bias is not None:
            raise UserError("a bias on attention scores needs Transformer Engine")
        causal = (attn_mask_type or self.attn_mask_type) in _CAUSAL
        if packed_seq_params is not None:
            return self._packed(query, key, value, packed_seq_params.cu_seqlens_q, causal)
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        return self._attend(q, k, v, causal, attention_mask).permute(2, 0, 1, 3).flatten(2)

    def _packed(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """Each of the sequences that start at ``ends`` ([n + 1], from 0) sees itself only."""
        bounds = ends.tolist()
        if bounds[-1] < query.size(0):
            bounds.append(query.size(0))
        q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        parts = [
            self._attend(q[:, :, start:end], k[:, :, start:end], v[:, :, start:end], causal, None)
            for start, end in itertools.pairwise(bounds)
            if end > start
        ]
        return torch.cat(parts, dim=2).squeeze(0).transpose(0, 1).flatten(1)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        """All of [batch, heads, tokens, channels]."""
        dropout = self.dropout if self.training else 0.0
        mask = self._mask(q.size(2), k.size(2), causal, hidden, q.device)
        fork = dropout and not self.config.sequence_parallel
        with get_cuda_rng_tracker().fork() if fork else contextlib.nullcontext():
            return F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=causal and mask is None,
                scale=self.scale,
                enable_gqa=q.size(1) != k.size(1),
            )

    def _mask(
        self, queries: int, keys: int, causal: bool, hidden: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor | None:
        """True where a query sees a key; None where the kernel needs no mask."""
        seen = None if hidden is None else ~hidden
        if self.window is None and (seen is not None or not causal or queries == keys):
            return seen
        query = torch.arange(keys - queries, keys, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        left, right = self.window or (-1, -1)
        near = torch.ones(queries, keys, dtype=torch.bool, device=device)
        if causal:
            near &= key <= query
        if left >= 0:
            near &= key >= query - left
        if right >= 0:
            near &= key <= query + right
        return near if seen is None else near & seen


def core_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """What every local layer specification asks for: dense, mixture of experts, latent attention, multi-token."""
    return lambda self: SDPAttention
