"""``primus train pretrain|posttrain``: from an experiment file to a finished run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from primus_core.cli.context import State
from primus_core.errors import EnvironmentFault, ExitCode, UserError
from primus_core.launch import direct
from primus_core.plugins.manager import version_of
from primus_core.plugins.records import Stage

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.launch.again import Again
    from primus_core.launch.prepare import Preparation
    from primus_core.plugins.records import Backend


@click.group()
def train() -> None:
    """Train a model. Parameters of the engine stand behind the options: --train_iters 10, train_iters=10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asks for, apart from the launcher."""

    stage: Stage
    file: Path
    overrides: tuple[str, ...]
    backend: str | None = None
    data_path: Path | None = None
    backend_path: Path | None = None
    export_config: Path | None = None


def _command(stage: Stage, summary: str) -> click.Command:
    @click.pass_context
    def run(ctx: click.Context, /, **given: Any) -> int:
        state = ctx.ensure_object(State)
        state.dry_run |= given.pop("dry_run")
        launch = {str(option.name): given.pop(str(option.name)) for option in direct.OPTIONS}
        order = Order(stage=stage, overrides=tuple(ctx.args), **given)
        return carry_out(state, order, launch_options(state, launch, order))

    return click.Command(
        stage,
        callback=run,
        help=summary,
        params=[*_options(), *direct.OPTIONS],
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        options_metavar="--config FILE [OPTIONS] [KEY=VALUE | --KEY VALUE] ...",
    )


def _options() -> list[click.Option]:
    file = click.Path(path_type=Path, dir_okay=False)
    folder = click.Path(path_type=Path, file_okay=False)
    return [
        click.Option(["--config", "--exp", "file"], type=file, required=True, metavar="FILE", help="The experiment."),
        click.Option(["--backend"], metavar="NAME", help="Instead of the experiment's framework."),
        click.Option(["--data_path", "--data-path"], type=folder, help="Where data sets are cached (HF_HOME)."),
        click.Option(["--backend_path", "--backend-path"], type=folder, help="An engine's source, for PYTHONPATH."),
        click.Option(["--export_config", "--export-config"], type=file, help="Write the resolved experiment here."),
        click.Option(["--dry-run"], is_flag=True, help="Print what would be done, and do nothing."),
    ]


train.add_command(_command("pretrain", "Train from scratch or from a checkpoint, on plain text."))
train.add_command(_command("posttrain", "Fine-tune on instructions: full or LoRA."))


def launch_options(state: State, given: Mapping[str, Any], order: Order) -> dict[str, Any]:
    """The launcher's options, with those that stand behind ``train``, which are for the ``direct`` one."""
    launcher = state.invocation
    if launcher.launcher != "direct":  # they stand in its argv, for the direct one inside
        return dict(launcher.options)
    options = {**launcher.options, **{name: value for name, value in given.items() if value not in (None, ())}}
    options["env"] = (*_paths(order, state.environ), *launcher.options.get("env", ()), *given["env"])
    return options


def _paths(order: Order, environ: Mapping[str, str]) -> Iterator[str]:
    """What ``--data_path`` and ``--backend_path`` mean: variables for the workers."""
    if order.data_path is not None:
        yield f"HF_HOME={order.data_path.absolute() / 'huggingface'}"
    if order.backend_path is not None:
        if not order.backend_path.is_dir():
            raise UserError(f"--backend_path {order.backend_path}: no such folder")
        before = environ.get("PYTHONPATH")
        yield f"PYTHONPATH={order.backend_path.absolute()}{os.pathsep + before if before else ''}"


def carry_out(
    state: State,
    order: Order,
    options: Mapping[str, Any],
    before: Callable[[Preparation], None] = lambda preparation: None,
) -> int:
    """Resolve, check and train, or show the plan; ``before`` is called when all is found right."""
    from primus_core.config.check import check
    from primus_core.config.experiment import CheckContext
    from primus_core.config.resolve import resolve
    from primus_core.launch import nested
    from primus_core.launch.prepare import Preparation
    from primus_core.launch.script import render
    from primus_core.platforms.detect import current
    from primus_core.run import folder, sinks

    plugins, notes = state.plugins, list[str]()
    experiment = resolve(order.file, order.stage, order.overrides, plugins, order.backend, environ=state.environ)
    platform, devices = current(plugins, state.environ)
    preparation = Preparation(
        experiment=experiment,
        launcher=state.invocation.launcher,
        options=options,
        argv=tuple(word for word in state.invocation.argv if word != "--dry-run"),
        environ=state.environ,
        platform=platform.name,
        devices=devices,
        plugins=plugins,
        primusfile=state.primusfile,
        paths=tuple(filter(None, (order.file, order.data_path, order.backend_path))),
        note=notes.append,
    )
    joined = nested.joined(state.environ)
    request = preparation.request(joined or folder.next_attempt(experiment.folder))
    plan = preparation.plan(request)
    if plan.submits:
        plan = preparation.plan(preparation.request(folder.next_attempt(experiment.folder, "jobs")))
    laptop = platform.name == "cpu" and plan.ranks == 1 and (plan.again or state.dry_run)
    elsewhere = plan.again or laptop
    context = CheckContext(
        world_size=None if laptop else plan.ranks,
        platform=None if elsewhere else platform.name,
        devices=() if elsewhere else devices,
        installed={} if plan.again else _installed(request.backend),
    )
    for notice in check(experiment, context, plugins):
        _say(str(notice))
    sinks.check(experiment.metrics, plugins, _say)
    for note in dict.fromkeys(notes):
        _say(note)
    if order.data_path is not None:
        _say("--data_path: data sets are cached there (HF_HOME); the engine's own key is set by data_path=VALUE")
    before(preparation)
    if state.dry_run:
        if order.export_config is not None:
            _say(f"--export_config: {order.export_config} is not written in a dry run")
        click.echo(render(plan, preparation.secrets(plan)), nl=False)
        return ExitCode.DONE
    if not plan.again:
        _require(request.backend, platform.name)
        sinks.require(experiment.metrics, plugins)
    plugins.contributions("primus_prepare_launch", request=request, plan=plan)
    if order.export_config and joined is None:
        _export(experiment, order.export_config)
    return _submit(preparation) if plan.submits else _run(preparation, joined)


def _run(preparation: Preparation, joined: Path | None) -> int:
    """Train; after a failure once more, as often as it was asked for. An attempt of another primus is for that one to
    repeat."""
    from primus_core.launch.again import Again

    settings = direct.settings_of(preparation.options, preparation.experiment.launch)
    again = Again.of(settings if joined is None else {}, _say)
    if joined is not None and preparation.options.get("restart"):
        _say("--restart does nothing behind another launcher, which starts attempts: set launch.restart=N")
    while True:
        attempt, code = _attempt(preparation, joined, again)
        if joined or not again.wanted(attempt, code):
            return code


def _attempt(preparation: Preparation, joined: Path | None, again: Again) -> tuple[Path, ExitCode]:
    """Take the attempt's folder, or join one; write everything down, and train."""
    from primus_core.launch.script import render
    from primus_core.launch.supervise import carry_out
    from primus_core.run import folder
    from primus_core.run.sinks.console import header

    experiment = preparation.experiment
    attempt = joined or folder.create(experiment.folder)
    request = preparation.request(attempt)
    plan = again.applied(preparation.plan(request))
    secrets = preparation.secrets(plan)
    if joined is None:
        folder.record(attempt, experiment, describe(preparation), secrets)
    elif plan.node == 0 and not plan.again:
        folder.record(attempt, experiment, folder.inside(attempt, describe(preparation)), secrets)
    if plan.node == 0:
        name = "plan.sh" if joined is None else f"plan-{preparation.launcher}.sh"
        (attempt / name).write_text(render(plan, secrets), encoding="utf-8")
    if plan.node == 0 and not plan.again:
        for line in header(
            experiment,
            backend=request.backend,
            version=version_of(request.backend.engine),
            ranks=plan.ranks,
            platform=preparation.platform,
            devices=preparation.devices,
            attempt=attempt,
        ):
            click.echo(line)
    return attempt, carry_out(plan, attempt, preparation.environ, _say, secrets)


def _submit(preparation: Preparation) -> int:
    """Hand a job in; it makes its attempts when it runs."""
    from primus_core.launch.script import render
    from primus_core.launch.supervise import submit
    from primus_core.run import folder

    home = folder.create(preparation.experiment.folder, "jobs")
    plan = preparation.plan(preparation.request(home))
    (home / "plan.sh").write_text(render(plan, preparation.secrets(plan)), encoding="utf-8")
    if status := submit(plan, preparation.environ):
        raise UserError(f"{plan.again} refused the job: exit code {status}; its script is {home / 'job.sh'}")
    _say(f"job folder: {home}")
    return ExitCode.DONE


def describe(preparation: Preparation) -> dict[str, Any]:
    """What the record of a run says about it, as things are now."""
    from primus_core.run import folder

    return folder.describe(
        preparation.experiment,
        argv=preparation.argv,
        launcher=preparation.launcher,
        options=preparation.options,
        platform=preparation.platform,
        devices=preparation.devices,
        environ=preparation.environ,
        primusfile=preparation.primusfile,
    )


def _installed(backend: Backend) -> dict[str, str]:
    from primus_core.plugins.readiness import readiness

    ready = readiness(backend, None)
    needs = (ready.engine, *ready.requires, *ready.optional)
    return {need.distribution: need.installed for need in needs if need.installed}


def _require(backend: Backend, platform: str) -> None:
    """Raise ``EnvironmentFault`` if the backend cannot run here."""
    from primus_core.plugins.readiness import readiness

    ready = readiness(backend, platform)
    if ready.reasons:
        help_ = f"; {backend.install}" if ready.fixable and backend.install else ""
        raise EnvironmentFault(f"{backend.name} cannot run here: {'; '.join(ready.reasons)}{help_}")


def _export(experiment: Experiment, target: Path) -> None:
    from primus_core.config.render import dump

    try:
        target.write_text(dump(experiment), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--export_config {target}: {error.strerror}") from error


def _say(line: str) -> None:
    click.echo(line, err=True)
