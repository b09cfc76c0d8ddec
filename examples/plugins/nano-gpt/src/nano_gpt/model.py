"""The model: a GPT over bytes, with pre-normalisation and tied embeddings (Radford et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nano_gpt.settings import Settings

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Tokens [batch, length] to logits [batch, length, 256]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, settings.width)
        self.positions = nn.Embedding(settings.context, settings.width)
        self.blocks = nn.Sequential(*(Block(settings) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(settings.width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        return F.linear(self.norm(x), self.tokens.weight)
