"""Latent attention whose queries are projected at once, as in DeepSeek-V2-Lite: they have no norm of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def accept_unused_query_norm(original: Callable[..., Any]) -> Callable[..., None]:
    """The layer specs carry a query norm whenever the keys have one."""

    def accept(self: Any) -> None:
        """Nothing: the norm is left out by ``without_query_norm``."""

    return accept


def without_query_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Norms and projections of latent attention; queries without a low rank get a plain projection."""

    def resolve(self: Any) -> Any:
        from megatron.core.transformer.identity_op import IdentityOp

        if self.has_q_lora:
            return original(self)
        given = self.submodules
        norm = given.kv_layernorm or IdentityOp
        of_keys = self._mla_fused_linear_or_default if self._is_trivial(norm) else self._non_fused_or_default
        return self._result(
            linear_q_proj=self._non_fused_or_default(given.linear_q_proj, "linear_q_proj"),
            linear_q_up_proj=IdentityOp,
            linear_kv_up_proj=of_keys(given.linear_kv_up_proj, "linear_kv_up_proj"),
            q_layernorm=IdentityOp,
            kv_layernorm=norm,
        )

    return resolve
