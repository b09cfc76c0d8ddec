"""LoRA on Megatron's parallel linear layers (Hu et al. 2021, arXiv:2106.09685): y = W x + alpha / dim * B A x.

An adapter is a child of the layer that it adapts, added to its output by a forward hook, so the layer keeps its place
and its name in checkpoints. The weights follow the layer's tensor parallelism: of a column-parallel layer B is
sharded like its output, of a row-parallel one A like its input, and only ``dim`` numbers per token are communicated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.parallel_state import get_expert_model_parallel_rank
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from primus_core.errors import UserError

_INIT: Mapping[str, Callable[..., Tensor]] = {
    "xavier": nn.init.xavier_normal_,
    "kaiming": lambda weight, generator: nn.init.kaiming_uniform_(weight, a=5**0.5, generator=generator),
    "normal": lambda weight, generator: nn.init.normal_(weight, std=0.02, generator=generator),
    "zero": lambda weight, generator: nn.init.zeros_(weight),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The section ``lora`` of the parameters."""

    dim: int = 32
    alpha: int = 32
    dropout: float = 0.0
    dropout_position: str = "pre"
    lora_A_init_method: str = "xavier"
    lora_B_init_method: str = "zero"
    target_modules: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    save_merged: str | None = None
    """Where the model with merged adapters goes after training; a relative path lies in the run's folder."""

    @classmethod
    def of(cls, section: Mapping[str, Any] | None) -> Options | None:
        """What the section says; None where LoRA is off. Raises ``UserError`` for values that it cannot take."""
        if not section or not section.get("enabled"):
            return None
        values = {key: value for key, value in section.items() if key != "enabled" and value is not None}
        if "target_modules" in values:
            values["target_modules"] = tuple(values["target_modules"])
        options = cls(**values)
        for name in ("lora_A_init_method", "lora_B_init_method"):
            if (method := getattr(options, name)) not in _INIT:
                raise UserError(f"lora.{name}: {method!r} is not one of {', '.join(_INIT)}")
        if options.dim < 1 or not 0 <= options.dropout < 1:
            raise UserError("lora: dim must be at least 1, and dropout at least 0 and less than 1")
        return options


class Adapter(nn.Module):
    """A [dim, in] and B [out, dim] beside a column- or row-parallel layer, whose shards it shares."""

    def __init__(self, layer: nn.Module, options: Options, name: str, seed: int) -> None:
        super().__init__()
        config: Any = layer.config
        self.column = isinstance(layer, ColumnParallelLinear)
        self.expert = bool(layer.is_expert)
        self.gated = bool(config.gated_linear_unit) and name.endswith("linear_fc1")
        self.group: Any = layer.tp_group
        self.sequence_parallel = bool(config.sequence_parallel) and not self.expert and self.group.size() > 1
        self.scale = options.alpha / options.dim
        self.dropout, self.before = options.dropout, options.dropout_position == "pre"
        shards, rank = self.group.size(), self.group.rank()
        weight: Tensor = layer.weight  # type: ignore[assignment]
        outputs, inputs = weight.shape
        full_a = torch.empty(options.dim, inputs * (1 if self.column else shards), dtype=torch.float32, device="cpu")
        full_b = torch.empty(outputs * (shards if self.column else 1), options.dim, dtype=torch.float32, device="cpu")
        for full, method, which in (
            (full_a, options.lora_A_init_method, "a"),
            (full_b, options.lora_B_init_method, "b"),
        ):
            _INIT[method](full, generator=_generator(f"{seed} {name} {which}"))
        a = full_a if self.column else full_a[:, rank * inputs : (rank + 1) * inputs]
        b = full_b[rank * outputs : (rank + 1) * outputs] if self.column else full_b
        self.a = self._parameter(a, weight, sharded=not self.column, dim=1)
        self.b = self._parameter(b, weight, sharded=self.column, dim=0)

    def _parameter(self, value: Tensor, like: Tensor, *, sharded: bool, dim: int) -> nn.Parameter:
        """With what Megatron reads from a parameter: how it is sharded, and whose gradients have to be added up."""
        parameter = nn.Parameter(value.to(like.device, like.dtype).contiguous())
        marks = {
            "tensor_model_parallel": sharded,
            "partition_dim": dim if sharded else -1,
            "partition_stride": 1,
            "allreduce": not self.expert,
            "sequence_parallel": self.sequence_parallel and not sharded,
        }
        for name, mark in marks.items():
            setattr(parameter, name, mark)
        return parameter

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the layer's output for its input x [tokens, batch, in], each as the layer has it."""
        if self.before:
            x = self._drop(x, sharded=self.sequence_parallel or not self.column)
        hidden = F.linear(x, self.a)
        if self.group.size() > 1:
            hidden = self._across(hidden)
        y = F.linear(hidden, self.b) * self.scale
        return y if self.before else self._drop(y, sharded=self.sequence_parallel or self.column)

    def _across(self, hidden: Tensor) -> Tensor:
        """[tokens, batch, dim], which every rank needs whole: for its shard of B, or of the sum over shards of A."""
        if self.column:
            if self.sequence_parallel:
                return gather_from_sequence_parallel_region(hidden, group=self.group)
            return copy_to_tensor_model_parallel_region(hidden, group=self.group)
        if self.sequence_parallel:
            return reduce_scatter_to_sequence_parallel_region(hidden, group=self.group)
        return reduce_from_tensor_model_parallel_region(hidden, group=self.group)

    def _drop(self, x: Tensor, *, sharded: bool) -> Tensor:
        """Dropout, with other numbers on each rank where each has another part."""
        if not (self.training and self.dropout):
            return x
        with get_cuda_rng_tracker().fork() if sharded and self.group.size() > 1 else nullcontext():
            return F.dropout(x, self.dropout)

    def update(self) -> Tensor:
        """What the adapter adds to this rank's shard of the layer's weight, [out, in], in float32."""
        return self.scale * (self.b.float() @ self.a.float())

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        axes = {"b": 0} if self.column else {"a": 1}
        assert metadata is not None
        groups = {"tp_group": self.group, "dp_cp_group": metadata["dp_cp_group"]}
        tensors = self.state_dict(prefix="", keep_vars=True)
        state: dict[str, Any] = make_sharded_tensors_for_checkpoint(tensors, prefix, axes, sharded_offsets, **groups)
        if self.gated:  # a shard holds a piece of the gate and one of the other half
            alone = bool(metadata.get("singleton_local_shards"))
            state[f"{prefix}b"] = apply_swiglu_sharded_factory(
                state[f"{prefix}b"], sharded_offsets, alone, tp_group=self.group, dp_group=metadata["dp_cp_group"]
            )
        return state


def add(model: nn.Module, options: Options, seed: int) -> list[str]:
    """Freeze the model and give its target layers adapters; returns targets that no layer of this model matches.

    A target is the name of a layer, ``linear_qkv``, or a pattern of its path, ``*.layers.0.*.linear_qkv``. Weights
    depend on ``seed`` and the layer's place in the whole model alone, so not on how it is parallelized. Raises
    ``UserError`` for a layer that cannot be adapted, and if none matches.
    """
    model.requires_grad_(False)
    unmatched = set(options.target_modules)
    names = dict(_named_layers(model))
    for name, (layer, whole_name) in names.items():
        if matching := [target for target in options.target_modules if _matches(name, target)]:
            unmatched -= set(matching)
            _check(layer, name)
            _attach(layer, Adapter(layer, options, whole_name, seed))
    if getattr(model.config, "recompute_granularity", None) == "full":  # type: ignore[union-attr]
        _keep_recomputation_alive(model)
    if len(unmatched) == len(set(options.target_modules)):
        there = sorted({name.rpartition(".")[2] for name, (layer, _) in names.items() if _is_parallel(layer)})
        raise UserError(f"lora.target_modules: no layer matches; there are {', '.join(there)}")
    return sorted(unmatched)


def adapters(model: nn.Module) -> Iterator[tuple[nn.Module, Adapter]]:
    """The adapted layers with their adapters."""
    for module in list(model.modules()):
        if isinstance(adapter := module._modules.get("adapter"), Adapter):
            yield module, adapter


@torch.no_grad()
def merge(model: nn.Module) -> int:
    """Add the adapters to the weights that they adapt and remove them; returns how many there were."""
    count = 0
    for layer, adapter in list(adapters(model)):
        weight: Tensor = layer.weight  # type: ignore[assignment]
        weight.copy_((weight.float() + adapter.update()).to(weight.dtype))
        layer._adapter_hook.remove()  # type: ignore[operator, union-attr]
        del layer.adapter, layer._adapter_hook, layer.sharded_state_dict
        count += 1
    return count


def _attach(layer: nn.Module, adapter: Adapter) -> None:
    def adapted(layer: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        return output[0] + adapter(inputs[0]), output[1]

    plain = layer.sharded_state_dict

    def sharded_state_dict(prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        del layer._modules["adapter"]
        try:
            own = plain(prefix, sharded_offsets, metadata)  # type: ignore[operator]
        finally:
            layer.adapter = adapter
        return {**own, **adapter.sharded_state_dict(f"{prefix}adapter.", sharded_offsets, metadata)}

    layer.adapter = adapter
    layer._adapter_hook = layer.register_forward_hook(adapted)  # type: ignore[assignment]
    layer.sharded_state_dict = sharded_state_dict  # type: ignore[assignment]


def _keep_recomputation_alive(model: nn.Module) -> None:
    """Recomputed layers get gradients only if their input asks for one, which frozen embeddings do not."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "embedding":
            module.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _named_layers(model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Modules by path, with a name that is the same whatever pipeline stage and expert-parallel rank holds them."""
    numbers = {name: module.layer_number for name, module in model.named_modules() if hasattr(module, "layer_number")}
    for name, module in model.named_modules():
        above = next((name[:at] for at in _ends(name) if name[:at] in numbers), None)
        whole_name = name if above is None else f"{numbers[above]}{name[len(above) :]}"
        yield name, (module, re.sub(r"(?<=local_experts\.)\d+", _of_all_experts(module), whole_name))


def _of_all_experts(module: nn.Module) -> Callable[[re.Match[str]], str]:
    """From the number of an expert on this rank to its number among all."""

    def number(match: re.Match[str]) -> str:
        config: Any = module.config
        first = get_expert_model_parallel_rank() * config.num_moe_experts // config.expert_model_parallel_size
        return str(first + int(match[0]))

    return number


def _ends(name: str) -> Iterator[int]:
    return (at for at, character in enumerate(name) if character == ".")


def _matches(name: str, target: str) -> bool:
    return name.rpartition(".")[2] == target or fnmatchcase(name, target)


def _is_parallel(layer: nn.Module) -> bool:
    return isinstance(layer, ColumnParallelLinear | RowParallelLinear)


def _check(layer: nn.Module, name: str) -> None:
    if not _is_parallel(layer):
        raise UserError(
            f"lora.target_modules: {name} is a {type(layer).__name__}; adapters go on Megatron's own parallel layers "
            "(transformer_impl: local)"
        )
    if isinstance(layer, ColumnParallelLinear) and layer.gather_output:
        raise UserError(f"lora.target_modules: {name} gathers its output, which adapters do not follow")
    if layer.is_expert and layer.tp_group.size() > 1:
        raise UserError(f"lora.target_modules: {name}: experts with expert_tensor_parallel_size > 1 take no adapters")


def _generator(text: str) -> torch.Generator:
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))
