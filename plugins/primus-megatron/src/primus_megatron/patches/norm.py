"""Layer norms of PyTorch that know sequence parallelism and gammas centred at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


class _Norm(torch.nn.Module):
    """Gamma (and beta) of shape [hidden]; sequence parallelism sums their gradients over the tensor group."""

    def __init__(self, config: Any, hidden_size: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.offset = int(config.layernorm_zero_centered_gamma)
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        options = {"dtype": config.params_dtype, "device": device}
        self.weight = torch.nn.Parameter(torch.full((hidden_size,), 1.0 - self.offset, **options))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, **options)) if bias else None
        for param in self.parameters():
            param.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    @property
    def gamma(self) -> torch.Tensor:
        return self.weight + self.offset if self.offset else self.weight


class RMSNorm(_Norm):
    """Zhang and Sennrich 2019."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(config, hidden_size, eps, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.gamma, self.eps)


class LayerNorm(_Norm):
    """Ba et al. 2016."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(config, hidden_size, eps, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.gamma, self.bias, self.eps)


def torch_norm(original: Any) -> type:
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    return WrappedTorchNorm


def norm_of_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """``WrappedTorchNorm.__new__``, which every local layer specification ends in."""
    kinds = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}

    def new(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, *args: Any, **kwargs: Any) -> Any:
        kind = kinds.get(config.normalization)
        return kind(config, hidden_size, eps) if kind else original(cls, config, hidden_size, eps, *args, **kwargs)

    return new
