"""Every hook of primus. Implement one with ``primus_core.plugins.hookimpl``; take only the arguments you need.

Contributions are generators of records (``primus_core.plugins.records``). Observers return nothing and cannot mask
an error of the run: what they raise is shown with the plugin's name, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from primus_core.config.experiment import CheckContext, Experiment
    from primus_core.errors import Problem
    from primus_core.launch.plan import LaunchRequest, Plan
    from primus_core.plugins.records import (
        Backend,
        Command,
        Dataset,
        EnvVar,
        Launcher,
        MetricSink,
        Model,
        Patch,
        Platform,
        PresetPath,
    )
    from primus_core.run.context import Run

_marker = pluggy.HookspecMarker("primus")


def hookspec[F: Callable[..., Any]](*, since: str, deprecated: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Marks a hook that exists since this version of the core.

    ``deprecated`` says for arguments that will go what to use instead: a plugin that takes one is told so with its
    file and line when it is loaded, and works.
    """

    def mark(function: F) -> F:
        function.since, function.deprecated = since, dict(deprecated or {})  # type: ignore[attr-defined]
        return _marker(function)

    return mark


# --- registration -----------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Backends that this plugin provides.

    When it is called: once, when a command first needs a backend.
    In which process: CLI and every rank.
    What it may return: ``Backend`` records. Two backends of one name are a conflict.
    Example::

        @hookimpl
        def primus_backends():
            yield Backend(name="nano", summary="nano-gpt", engine="nano-gpt", engine_versions=">=1,<2",
                          trainer="primus_nano.train:train", schemas=HERE / "schemas", presets=HERE / "presets")
    """


@hookspec(since="0.1")
def primus_launchers() -> Iterable[Launcher]:  # type: ignore[empty-body]
    """Ways to start worker processes.

    When it is called: once, when the command line is parsed.
    In which process: CLI.
    What it may return: ``Launcher`` records.
    Example::

        @hookimpl
        def primus_launchers():
            yield Launcher(name="k8s", summary="Kubernetes", plan="primus_k8s:plan", options="primus_k8s:OPTIONS")
    """


@hookspec(since="0.1")
def primus_platforms() -> Iterable[Platform]:  # type: ignore[empty-body]
    """Kinds of hardware that this plugin can recognise.

    When it is called: once, when the hardware is first asked for.
    In which process: CLI and every rank.
    What it may return: ``Platform`` records.
    Example::

        @hookimpl
        def primus_platforms():
            yield Platform(name="xpu", summary="Intel GPUs", detect="primus_xpu:detect", rank=10, backend="xccl")
    """


@hookspec(since="0.1")
def primus_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Subcommands of ``primus``. Commands of the core cannot be replaced.

    When it is called: once, when the command line is parsed.
    In which process: CLI.
    What it may return: ``Command`` records.
    Example::

        @hookimpl
        def primus_commands():
            yield Command(name="tune", summary="Search for the best sizes", command="primus_tune.cli:tune")
    """


@hookspec(since="0.1")
def primus_metric_sinks() -> Iterable[MetricSink]:  # type: ignore[empty-body]
    """Places that metrics go to.

    When it is called: once, before training.
    In which process: the reporting rank.
    What it may return: ``MetricSink`` records.
    Example::

        @hookimpl
        def primus_metric_sinks():
            yield MetricSink(name="aim", summary="Aim", factory="primus_aim:make")
    """


@hookspec(since="0.1")
def primus_models() -> Iterable[Model]:  # type: ignore[empty-body]
    """Models for a backend, which may be somebody else's.

    When it is called: once, when a model preset is looked up.
    In which process: CLI and every rank.
    What it may return: ``Model`` records.
    Example::

        @hookimpl
        def primus_models():
            yield Model(backend="megatron", name="zebra_1B", preset=HERE / "zebra_1B.yaml", builder="zebra:build")
    """


@hookspec(since="0.1")
def primus_datasets() -> Iterable[Dataset]:  # type: ignore[empty-body]
    """Named sources of text.

    When it is called: once, by ``primus data``.
    In which process: CLI.
    What it may return: ``Dataset`` records.
    Example::

        @hookimpl
        def primus_datasets():
            yield Dataset(name="pydoc", summary="Topics of the Python reference", read="my_texts:pydoc")
    """


# --- configuration ----------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_preset_paths() -> Iterable[PresetPath]:  # type: ignore[empty-body]
    """Folders with further presets of a backend.

    When it is called: once, when a preset is first looked up.
    In which process: CLI.
    What it may return: ``PresetPath`` records; a preset that exists twice is a conflict.
    Example::

        @hookimpl
        def primus_preset_paths():
            yield PresetPath(backend="megatron", path=HERE / "presets")
    """


@hookspec(since="0.1")
def primus_resolve_config(experiment: Experiment) -> Mapping[str, Any] | None:
    """Values that follow from others, set below the user's own: they never replace what the experiment says.

    When it is called: after all layers are merged, before checking.
    In which process: CLI.
    What it may return: ``{"a.b": value}``, or None.
    Example::

        @hookimpl
        def primus_resolve_config(experiment):
            if experiment.backend == "megatron" and experiment.get("save") is None:
                return {"save": "checkpoints"}
    """


@hookspec(since="0.1")
def primus_check_config(experiment: Experiment, context: CheckContext) -> Iterable[Problem]:  # type: ignore[empty-body]
    """What is wrong with values that are right one by one: parallel sizes, divisibility, missing features.

    When it is called: after the schema check, before anything is launched.
    In which process: CLI.
    What it may return: ``Problem`` records; ``experiment.origin_of("a.b")`` gives the place.
    Example::

        @hookimpl
        def primus_check_config(experiment, context):
            if experiment.get("seq_length") % experiment.get("context_parallel_size"):
                yield Problem(experiment.origin_of("seq_length"), "does not divide by context_parallel_size")
    """


# --- model build ------------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_model_built(run: Run, model: Any) -> None:
    """Look at, or change in place, a model that was just built.

    When it is called: after the build, before the optimizer is made; once per model chunk.
    In which process: every rank.
    What it may return: nothing.
    Example::

        @hookimpl
        def primus_model_built(run, model):
            model.embedding.requires_grad_(False)
    """


# --- patching ---------------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_patches() -> Iterable[Patch]:  # type: ignore[empty-body]
    """Replacements of something in an engine, one's own backend's or another's.

    When it is called: once, before the engine is imported, and by ``primus patches``.
    In which process: CLI and every rank.
    What it may return: ``Patch`` records, applied in the order of their phase and then of their registration.
    Example::

        @hookimpl
        def primus_patches():
            yield Patch(name="nano.loss-in-float32", reason="bf16 cross entropy loses digits", backend="nano",
                        target="nano.loss:cross_entropy", replacement="primus_nano.patches:float32",
                        engine_versions=">=1,<2")
    """


# --- launch -----------------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_launch_env(request: LaunchRequest) -> Iterable[EnvVar]:  # type: ignore[empty-body]
    """Defaults for the workers' environment. The user's own values always win.

    When it is called: when a launcher makes its plan.
    In which process: CLI.
    What it may return: ``EnvVar`` records.
    Example::

        @hookimpl
        def primus_launch_env(request):
            yield EnvVar(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1", origin="primus-megatron")
    """


@hookspec(since="0.1")
def primus_prepare_launch(request: LaunchRequest, plan: Plan) -> None:
    """The last look at a plan before it is carried out. Raise a ``UserError`` to refuse it.

    When it is called: after the plan is made; not with ``--dry-run``.
    In which process: CLI.
    What it may return: nothing.
    Example::

        @hookimpl
        def primus_prepare_launch(request, plan):
            request.note(f"{len(plan.files)} files will be written")
    """


# --- life of a run ----------------------------------------------------------------------------------------------


@hookspec(since="0.1")
def primus_run_started(run: Run) -> None:
    """A worker is set up and is about to hand over to the backend.

    When it is called: once. In which process: every rank. What it may return: nothing.
    Example::

        @hookimpl
        def primus_run_started(run):
            print("rank", run.rank)
    """


@hookspec(since="0.1")
def primus_step_finished(run: Run, step: int, metrics: Mapping[str, float | int | None]) -> None:
    """Metrics of a step (or of a log interval) are there.

    When it is called: each log interval. In which process: the reporting rank. What it may return: nothing.
    Example::

        @hookimpl
        def primus_step_finished(run, step, metrics):
            if metrics["loss"] < 1:
                print("below one at step", step)
    """


@hookspec(since="0.1")
def primus_checkpoint_saved(run: Run, step: int, path: Path) -> None:
    """A checkpoint is complete.

    When it is called: after the engine wrote it. In which process: the reporting rank. What it may return: nothing.
    Example::

        @hookimpl
        def primus_checkpoint_saved(run, step, path):
            upload(path)
    """


@hookspec(since="0.1")
def primus_run_finished(run: Run) -> None:
    """The backend returned without an error.

    When it is called: once. In which process: every rank. What it may return: nothing.
    Example::

        @hookimpl
        def primus_run_finished(run):
            print("done after", run.seconds, "seconds")
    """


@hookspec(since="0.1")
def primus_run_failed(run: Run, error: BaseException) -> None:
    """The backend raised. The error stands, whatever this hook does.

    When it is called: once. In which process: the rank that failed. What it may return: nothing.
    Example::

        @hookimpl
        def primus_run_failed(run, error):
            notify(f"{run.name}: {error}")
    """
