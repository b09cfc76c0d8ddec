"""The scan of Mamba-2 in PyTorch: the chunked algorithm for state-space duality.

Dao and Gu 2024, "Transformers are SSMs", section 6: within a chunk a masked matrix product, from chunk to chunk a
recurrence over states.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def ssd(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    chunk: int,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of ``s[t] = exp(dt[t] a) s[t-1] + dt[t] b[t] x[t]``, ``y[t] = c[t] s[t]``, and the last state.

    x [batch, tokens, heads, p], dt [batch, tokens, heads], a [heads] (negative), b and c [batch, tokens, groups, n],
    states [batch, heads, p, n]. Computes in the dtype of x.
    """
    batch, tokens, heads, width = x.shape
    groups, size = b.shape[2:]
    rest = -tokens % chunk
    x, dt, b, c = (_chunks(tensor, chunk, rest) for tensor in (x, dt, b, c))
    x = (x * dt[..., None]).unflatten(3, (groups, -1))  # [batch, chunks, tokens, groups, heads of a group, p]
    decay = (dt * a).unflatten(3, (groups, -1)).cumsum(2)  # log of what is left of the state before the chunk

    left = decay.permute(0, 1, 3, 4, 2)
    between = left[..., :, None] - left[..., None, :]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    weights = between.masked_fill(later, float("-inf")).exp() * torch.einsum("zcqgn,zckgn->zcgqk", c, b)[:, :, :, None]
    y = torch.einsum("zcgrqk,zckgrp->zcqgrp", weights, x)

    to_end = (decay[:, :, -1:] - decay).exp()
    added = torch.einsum("zckgn,zckgrp->zcgrpn", b, x * to_end[..., None])
    kept = decay[:, :, -1].exp()[..., None, None]
    current = x.new_zeros(batch, heads, width, size) if state is None else state
    current = current.unflatten(1, (groups, -1))
    before = []
    for index in range(x.size(1)):
        before.append(current)
        current = current * kept[:, index] + added[:, index]
    y = y + torch.einsum("zcqgn,zcgrpn->zcqgrp", c, torch.stack(before, 1)) * decay.exp()[..., None]
    return y.flatten(1, 2)[:, :tokens].flatten(2, 3), current.flatten(1, 2)


def _chunks(tensor: torch.Tensor, chunk: int, rest: int) -> torch.Tensor:
    """[batch, tokens, ...] to [batch, chunks, chunk, ...]; what is added changes neither state nor output."""
    padded = F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, rest)) if rest else tensor
    return padded.unflatten(1, (-1, chunk))
