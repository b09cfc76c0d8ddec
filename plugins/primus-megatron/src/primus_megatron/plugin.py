"""What this plugin contributes. Imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend, Converter, EnvVar, Patch
from primus_megatron.hf import CODE
from primus_megatron.patches.records import primus_megatron_patches

if TYPE_CHECKING:
    from primus_core.config.experiment import CheckContext, Experiment
    from primus_core.errors import Problem
    from primus_core.launch.plan import LaunchRequest

_HERE = Path(__file__).parent
_NAME = "megatron"


@hookimpl
def primus_backends() -> Iterable[Backend]:
    yield Backend(
        name=_NAME,
        summary="Megatron-Core: dense and mixture-of-experts GPT, latent attention, Mamba hybrids",
        engine="megatron-core",
        engine_versions=">=0.19.2,<0.20",
        trainer="primus_megatron.train:train",
        schemas=_HERE / "schemas",
        presets=_HERE / "presets",
        examples=_HERE / "examples",
        templates=_HERE / "templates",
        capabilities="primus_megatron.capabilities:CAPABILITIES",
        headline={
            "layers": "num_layers",
            "hidden size": "hidden_size",
            "feed-forward size": "ffn_hidden_size",
            "attention heads": "num_attention_heads",
            "key and value heads": "num_query_groups",
            "experts": "num_experts",
            "experts per token": "moe_router_topk",
            "expert size": "moe_ffn_hidden_size",
            "context": "max_position_embeddings",
            "vocabulary": "vocab_size",
            "tokenizer": "tokenizer_model",
        },
        stages=("pretrain", "posttrain"),
        requires={
            "torch": ">=2.11,<2.16",
            "transformers": ">=5.10",
            "einops": ">=0.8",
            "psutil": ">=6",
            "triton | pytorch-triton-rocm | pytorch-triton": ">=3.6",
        },
        optional={
            "transformer-engine": "Fused layers, FP8 and FP4, context parallelism.",
            "mamba-ssm": "Triton kernels of the Mamba layers.",
            "flash-linear-attention": "Triton kernels of gated delta networks.",
            "tensorboard": "Curves in TensorBoard.",
        },
        install="pip install primus-megatron",
        reporter="last",
        converter=Converter(
            find="primus_megatron.checkpoints:find",
            convert="primus_megatron.convert.convert:convert",
            logits="primus_megatron.convert.logits:logits",
            code=CODE,
        ),
    )


@hookimpl
def primus_patches() -> Iterable[Patch]:
    yield from primus_megatron_patches()


@hookimpl
def primus_resolve_config(experiment: Experiment) -> Mapping[str, Any] | None:
    if experiment.backend != _NAME:
        return None
    from primus_megatron.derived import derive

    return derive(experiment)


@hookimpl
def primus_check_config(experiment: Experiment, context: CheckContext) -> Iterable[Problem]:
    if experiment.backend == _NAME:
        from primus_megatron.checks import check

        yield from check(experiment, context)


@hookimpl
def primus_launch_env(request: LaunchRequest) -> Iterable[EnvVar]:
    if request.backend.name == _NAME:
        from primus_megatron.derived import environment

        for name, value in environment(request.experiment, request.platform).items():
            yield EnvVar(name=name, value=value, origin="primus-megatron")
