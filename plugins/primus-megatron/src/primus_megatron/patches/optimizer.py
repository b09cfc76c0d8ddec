"""An Adam that keeps its step count in the parameter group, as those of apex and Transformer Engine do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from primus_core.errors import UserError


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW (Kingma and Ba 2015, Loshchilov and Hutter 2019) by PyTorch's own kernels.

    The results equal ``torch.optim.Adam`` and ``AdamW`` to the bit. What differs is the state: the distributed
    optimizer's checkpoints need the step in the group, not in each parameter's state.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        **needs_te: Any,
    ) -> None:
        needs_te["without bias correction"] = not bias_correction
        if refused := [name for name, value in needs_te.items() if value]:
            raise UserError(f"Adam {', '.join(refused)}: needs Transformer Engine, which is not installed")
        defaults = {"lr": lr, "bias_correction": True, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["params"]:
                self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        for param in params:
            if not self.state[param]:
                self.state[param]["exp_avg"] = torch.zeros_like(param)
                self.state[param]["exp_avg_sq"] = torch.zeros_like(param)
        fused = all(param.is_cuda for param in params)
        update = adamw if self.adam_w_mode else adam
        update(
            params,
            [param.grad for param in params],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            [torch.tensor(group["step"] - 1.0, device=param.device if fused else "cpu") for param in params],
            foreach=not fused,
            fused=fused,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def fused_adam(original: type) -> type:
    return FusedAdam


def false(original: bool) -> bool:
    return False


def true(original: bool) -> bool:
    return True


def without_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Copies into parameters that require gradients, which autograd refuses."""
    return torch.no_grad()(original)
