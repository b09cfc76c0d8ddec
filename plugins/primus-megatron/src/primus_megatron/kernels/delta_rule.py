"""The gated delta rule in PyTorch, chunk by chunk: of Gated DeltaNet and of Kimi Delta Attention.

For each head, with a state S [k, v] and a decay that is one number (Gated DeltaNet, Yang et al. 2024) or one for each
key channel (Kimi Linear, 2025)::

    S = exp(g) S;  u = beta (v - k S);  S = S + k u;  o = q S / sqrt(k channels)

Within a chunk the u follow from one unit triangular system. No positive number is ever exponentiated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

SCALAR_CHUNK, CHANNEL_CHUNK = 32, 16


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Of the last axis; the eps stands under the root."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the last state, in at least single precision.

    q and k [batch, tokens, heads, k], v [batch, tokens, value heads, v], g the log of the decay, [batch, tokens, value
    heads] or with a last axis of k, beta [batch, tokens, value heads], state [batch, value heads, k, v]. A head of q
    and k serves as many value heads, one after the other, as there are more of them. q and k are not normalized here.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    q, k, v, g, beta = (x.to(dtype).transpose(1, 2) for x in (q, k, v, g, beta))
    times = v.size(1) // q.size(1)
    q, k = ((x.repeat_interleave(times, 1) if times > 1 else x) for x in (q * q.size(-1) ** -0.5, k))
    g = g[..., None] if g.dim() == 3 else g
    state = v.new_zeros(*k.shape[:2], k.size(-1), v.size(-1)) if state is None else state.to(dtype)
    rule = _step if v.size(2) == 1 else _chunks
    o, state = rule(q, k, v, g, beta[..., None], state)
    return o.transpose(1, 2), state


type _Parts = tuple[torch.Tensor, torch.Tensor]


def _step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> _Parts:
    state = state * g.exp().transpose(-1, -2)
    state = state + k.transpose(-1, -2) @ (beta * (v - k @ state))
    return q @ state, state


def _chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> _Parts:
    tokens, size = v.size(2), SCALAR_CHUNK if g.size(-1) == 1 else CHANNEL_CHUNK
    q, k, v, g, beta = (F.pad(x, (0, 0, 0, -tokens % size)).unflatten(2, (-1, size)) for x in (q, k, v, g, beta))
    decay = g.cumsum(-2)
    later = torch.ones(size, size, dtype=torch.bool, device=v.device).triu(1)
    between = decay[..., :, None, :] - decay[..., None, :, :]
    between = between.masked_fill(later[..., None], float("-inf")).exp()  # [..., to, from, 1 or k]
    if g.size(-1) == 1:
        between = between.squeeze(-1)
        kk, qk = (k @ k.transpose(-1, -2)) * between, (q @ k.transpose(-1, -2)) * between
    else:
        keys = between * k[..., None, :, :]
        kk, qk = ((keys @ x[..., None]).squeeze(-1) for x in (k, q))
    known = torch.cat([v * beta, k * decay.exp() * beta], -1)
    solved = torch.linalg.solve_triangular((kk * beta).tril(-1), known, upper=False, unitriangular=True)
    u, w = solved.split([v.size(-1), k.size(-1)], -1)
    last = decay[..., -1:, :]
    into, out, kept = q * decay.exp(), (k * (last - decay).exp()).transpose(-1, -2), last.exp().transpose(-1, -2)
    outputs = []
    for each in zip(*(x.unbind(2) for x in (into, out, kept, u, w, qk)), strict=True):
        a, b, c, d, e, f = each
        new = d - e @ state
        outputs.append(a @ state + f @ new)
        state = state * c + b @ new
    return torch.stack(outputs, 2).flatten(2, 3)[:, :, :tokens], state
