"""The engine's description of how to train a model, as a run wants it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import torch
from torchtitan.protocols.train_spec import TrainSpec, get_train_spec

from primus_core.errors import UserError
from primus_torchtitan.v02 import data
from primus_torchtitan.v02.job import overrides
from primus_torchtitan.v02.metrics import Metrics

if TYPE_CHECKING:
    from torchtitan.config import JobConfig

    from primus_core.run.context import Run


def train_spec(run: Run, job: JobConfig) -> TrainSpec:
    """The specification of the model, its flavor with the run's own fields, data and metrics of primus.

    A model that a plugin registered has a builder: ``build(run, spec=spec) -> spec`` changes the engine's
    specification, or makes one where the engine has none.
    """
    spec = _known(job.model.name)
    if run.model and (build := run.builder(run.model)):
        spec = build(run, spec=spec)
    if spec is None:
        raise UserError(f"model.name: torchtitan has no model {job.model.name!r}")
    flavor = job.model.flavor
    if flavor not in spec.model_args:
        raise UserError(
            f"model.flavor: {job.model.name} has no flavor {flavor!r}{_hint(flavor, spec.model_args)}; "
            f"there are {', '.join(sorted(spec.model_args))}"
        )
    args = with_fields(copy.deepcopy(spec.model_args[flavor]), overrides(run))
    return dataclasses.replace(
        spec,
        model_args={flavor: args},
        build_tokenizer_fn=partial(data.tokenizer, run, spec.build_tokenizer_fn),
        build_dataloader_fn=partial(data.train_loader, run, args.vocab_size, spec.build_dataloader_fn),
        build_optimizers_fn=partial(_seen, run, spec.build_optimizers_fn),
        build_metrics_processor_fn=lambda job, dims, args: Metrics(run, job, dims),
    )


def _known(name: str) -> TrainSpec | None:
    try:
        return get_train_spec(name)
    except ValueError:
        return None


def _seen(run: Run, build: Any, parts: list[Any], *args: Any, **kwargs: Any) -> Any:
    """Let plugins see each part of the model before its optimizer is made."""
    for part in parts:
        run.model_built(part)
    optimizers = build(parts, *args, **kwargs)
    if not run.config.get("optimizer", {}).get("decay_norms_and_biases", True):
        for optimizer in optimizers:
            _decay_matrices_only(optimizer)
    return optimizers


def _decay_matrices_only(optimizer: torch.optim.Optimizer) -> None:
    """Put parameters of one dimension into groups without weight decay, as Megatron has them."""
    for group in list(optimizer.param_groups):
        vectors = [param for param in group["params"] if param.dim() < 2]
        if vectors:
            group["params"] = [param for param in group["params"] if param.dim() >= 2]
            optimizer.add_param_group(group | {"params": vectors, "weight_decay": 0.0})


def with_fields(args: Any, values: Mapping[str, Any], prefix: str = "model") -> Any:
    """A flavor with some of its fields set, also those of dataclasses inside it. Raises ``UserError`` for others."""
    names = [field.name for field in dataclasses.fields(args)]
    if unknown := [name for name in values if name not in names]:
        kind = type(args).__name__
        raise UserError("\n".join(f"{prefix}.{name}: {kind} has no such field{_hint(name, names)}" for name in unknown))
    inner = {
        name: with_fields(getattr(args, name) or _made(type(args), name), value, f"{prefix}.{name}")
        for name, value in values.items()
        if isinstance(value, Mapping)
    }
    return dataclasses.replace(args, **values | inner)


def _made(kind: type, name: str) -> Any:
    """What a field that is None can hold: the positions of Llama 4 are not scaled until somebody says how."""
    return next(each for each in get_args(get_type_hints(kind)[name]) if dataclasses.is_dataclass(each))()


def _hint(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
