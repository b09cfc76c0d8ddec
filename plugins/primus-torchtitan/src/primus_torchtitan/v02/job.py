"""From the parameters of a run to the engine's ``JobConfig``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from torchtitan.config import JobConfig

from primus_core.errors import UserError

if TYPE_CHECKING:
    from primus_core.run.context import Run

_TURBO = "primus_turbo"
_NONE = type(None)


def job_config(run: Run) -> JobConfig:
    """The engine's configuration. What is not the engine's own is left out: the schema tells what becomes of it.

    Output goes to the folder of the attempt, checkpoints to ``checkpoints`` in the folder of the run.
    """
    job: JobConfig = build(JobConfig, run.config)
    job.job.dump_folder = str(run.attempt)
    same = job.checkpoint.folder == JobConfig().checkpoint.folder
    job.checkpoint.folder = str(run.folder / ("checkpoints" if same else job.checkpoint.folder))
    job.metrics.disable_color_printing = True
    if _TURBO in job.model.converters:
        job.model.converters = [name for name in job.model.converters if name != _TURBO]
        run.note("model.converters: primus_turbo is left out, the kernels of Primus-Turbo are not used")
    if problem := "\n".join(_impossible(job, run)):
        raise UserError(problem)
    return job


def overrides(run: Run) -> dict[str, Any]:
    """The keys of ``model`` that are fields of the model's flavor rather than of ``JobConfig``."""
    known = {field.name for field in dataclasses.fields(JobConfig().model)}
    return {key: value for key, value in run.config.get("model", {}).items() if key not in known}


def build(kind: type, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    given = {}
    for name in hints.keys() & values.keys():
        nested = dataclasses.is_dataclass(hints[name])
        if values[name] is not None:
            given[name] = build(hints[name], values[name]) if nested else values[name]
        elif not nested and _NONE in getattr(hints[name], "__args__", ()):
            given[name] = None
    return kind(**given)


def _impossible(job: JobConfig, run: Run) -> Iterator[str]:
    """What the engine cannot do on this platform or in this version, in words."""
    weights = job.checkpoint.initial_load_path
    if run.platform == "cpu" and job.parallelism.context_parallel_degree > 1:
        yield "parallelism.context_parallel_degree: context parallelism has no attention for the CPU; leave it at 1"
    if weights and not Path(weights).is_dir():
        yield f"checkpoint.initial_load_path: {weights}: no such folder"
    if job.model.name == "llama4" and job.model.flavor.endswith("_irope"):
        yield (
            f"model.flavor: {job.model.flavor} fails in torchtitan 0.2, which gives each layer the masks of all; "
            f"take {job.model.flavor.removesuffix('_irope')}"
        )
    split, low = job.parallelism, job.training.mixed_precision_param == "bfloat16"
    others = split.data_parallel_replicate_degree * split.tensor_parallel_degree * split.pipeline_parallel_degree
    sharded = split.data_parallel_shard_degree > 1 or run.place.world_size > others
    if job.model.name == "gpt_oss" and not low and (split.data_parallel_shard_degree == 1 or not sharded):
        yield (
            "training.mixed_precision_param: the layers of gpt_oss are in bfloat16 unless FSDP gathers them in another "
            "type: set bfloat16"
        )
    for name in job.model.converters:
        yield from _converter(name, job, run)


def _converter(name: str, job: JobConfig, run: Run) -> Iterator[str]:
    if not name.startswith("quantize."):
        return
    if find_spec("torchao") is None:
        yield f"model.converters: {name} needs torchao: pip install 'primus-torchtitan[float8]'"
    elif name == "quantize.linear.float8" and run.platform == "cpu" and not job.quantize.linear.float8.emulate:
        yield (
            "model.converters: the CPU has no float8: quantize.linear.float8.emulate: true computes the same slowly "
            "(without compile), model.converters: [] does without"
        )
