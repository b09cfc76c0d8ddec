"""What this plugin contributes. Imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend, Converter, EnvVar, Model, Patch
from primus_torchtitan.patches.records import primus_torchtitan_patches

if TYPE_CHECKING:
    from primus_core.config.experiment import CheckContext, Experiment
    from primus_core.errors import Problem
    from primus_core.launch.plan import LaunchRequest

_HERE = Path(__file__).parent
_NAME = "torchtitan"


@hookimpl
def primus_backends() -> Iterable[Backend]:
    yield Backend(
        name=_NAME,
        summary="torchtitan: Llama 3 and 4, Qwen 3, DeepSeek V3 and GPT-OSS in native PyTorch",
        engine="torchtitan",
        engine_versions=">=0.2.2,<0.3",
        trainer="primus_torchtitan.train:train",
        schemas=_HERE / "schemas",
        presets=_HERE / "presets",
        examples=_HERE / "examples",
        templates=_HERE / "templates",
        capabilities="primus_torchtitan.capabilities:CAPABILITIES",
        headline={
            "architecture": "model.name",
            "flavor": "model.flavor",
            "tokenizer": "model.hf_assets_path",
            "converters": "model.converters",
        },
        describe="primus_torchtitan.flavors:describe",
        requires={
            "torch": ">=2.11,<2.14",
            "safetensors": ">=0.5",
            "triton | pytorch-triton-rocm | pytorch-triton": ">=3.6",
        },
        optional={
            "torchao": "Float8 and MX linear layers (pip install primus-torchtitan[float8]).",
            "tensorboard": "Curves in TensorBoard.",
        },
        install="pip install primus-torchtitan",
        converter=Converter(find="primus_torchtitan.convert:find", convert="primus_torchtitan.convert:convert"),
    )


@hookimpl
def primus_models() -> Iterable[Model]:
    yield Model(
        backend=_NAME,
        name="llama3.2_1B",
        preset=_HERE / "models" / "llama3.2_1B.yaml",
        builder="primus_torchtitan.models.tied_llama3:build",
    )


@hookimpl
def primus_patches() -> Iterable[Patch]:
    yield from primus_torchtitan_patches()


@hookimpl
def primus_check_config(experiment: Experiment, context: CheckContext) -> Iterable[Problem]:
    if experiment.backend == _NAME:
        from primus_torchtitan.checks import check

        yield from check(experiment, context)


@hookimpl
def primus_launch_env(request: LaunchRequest) -> Iterable[EnvVar]:
    if request.backend.name == _NAME:
        from primus_torchtitan.derived import environment

        for name, value in environment(request.experiment, request.platform).items():
            yield EnvVar(name=name, value=value, origin="primus-torchtitan")
