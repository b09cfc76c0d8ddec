"""The core's own launchers, platforms, commands and sinks, through the same hooks as everybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Command, Dataset, EnvVar, Launcher, MetricSink, Platform, load

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest


@hookimpl
def primus_launchers() -> Iterator[Launcher]:
    yield Launcher(
        name="direct",
        summary="Start workers on this machine with torchrun",
        plan="primus_core.launch.direct:plan",
        options="primus_core.launch.direct:OPTIONS",
    )
    yield Launcher(
        name="container",
        summary="Start primus again in a container of docker, podman, apptainer or bubblewrap",
        plan="primus_core.launch.container.launcher:plan",
        options="primus_core.launch.container.launcher:OPTIONS",
        extra=True,
    )
    yield Launcher(
        name="slurm",
        summary="Start primus again on each machine of a Slurm job, by srun or sbatch",
        plan="primus_core.launch.slurm:plan",
        options="primus_core.launch.slurm:OPTIONS",
        extra=True,
    )


@hookimpl
def primus_platforms() -> Iterator[Platform]:
    yield Platform(name="cpu", summary="The host's processor", detect="primus_core.platforms.cpu:detect")
    yield Platform(
        name="cuda", summary="NVIDIA GPUs", detect="primus_core.platforms.cuda:detect", rank=10, backend="nccl"
    )
    yield Platform(name="rocm", summary="AMD GPUs", detect="primus_core.platforms.rocm:detect", rank=10, backend="nccl")


@hookimpl
def primus_launch_env(request: LaunchRequest) -> Iterator[EnvVar]:
    yield from load("primus_core.platforms.environment:defaults")(request.platform, request.devices)


@hookimpl
def primus_commands() -> Iterator[Command]:
    yield _command("train", "Train a model: pretrain or posttrain", launches=True)
    yield _command("config", "Show, check, compare and explain experiments")
    yield _command("data", "Prepare text for training")
    yield _command("convert", "Checkpoints to and from other formats")
    yield _command("init", "Write a small commented experiment")
    yield _command("examples", "Experiments that plugins bring along")
    yield _command("models", "Models that plugins bring along")
    yield _command("backends", "What each backend can do")
    yield _command("rerun", "Repeat a run, and say what differs today")
    yield _command("runs", "Which runs there are, and how they stand")
    yield _command("logs", "What a rank of a run said")
    yield _command("report", "One HTML page about a run")
    yield _command("compare", "Two or more runs side by side")
    yield _command("plugins", "What is installed, and in which state")
    yield _command("patches", "What is replaced in engines, and why")
    yield _command("doctor", "What can run on this machine, and why not")


@hookimpl
def primus_datasets() -> Iterator[Dataset]:
    yield Dataset(
        name="pydoc",
        summary="Topics of the Python reference, as every CPython ships them (0.5 MB)",
        read="primus_core.data.datasets:pydoc",
    )


@hookimpl
def primus_metric_sinks() -> Iterator[MetricSink]:
    yield _sink("console", "Progress on the terminal")
    yield _sink("tensorboard", "TensorBoard event files", needs="tensorboard")
    yield _sink("wandb", "Weights & Biases", needs="wandb")
    yield _sink("mlflow", "MLflow", needs="mlflow")


def _command(name: str, summary: str, *, launches: bool = False) -> Command:
    return Command(name=name, summary=summary, command=f"primus_core.cli.{name}:{name}", launches=launches)


def _sink(name: str, summary: str, needs: str | None = None) -> MetricSink:
    return MetricSink(
        name=name,
        summary=summary,
        factory=f"primus_core.run.sinks.{name}:make",
        requires=(needs,) if needs else (),
        install=f"pip install 'primus-core[{needs}]'" if needs else "",
    )
