"""From a resolved experiment to a plan: the launcher's own part, the attempt's files, and the secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.config.tree import Leaf, Tree
from primus_core.launch import env
from primus_core.launch.plan import LaunchRequest, Plan
from primus_core.plugins.records import EnvVar
from primus_core.run import folder, job
from primus_core.secrets import secret_values

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.manager import PluginManager
    from primus_core.plugins.records import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All that a plan follows from, but the number of the attempt."""

    experiment: Experiment
    launcher: str
    options: Mapping[str, Any]
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    platform: str
    devices: tuple[Device, ...]
    plugins: PluginManager
    primusfile: Path | None = None
    paths: tuple[Path, ...] = ()
    """Files and folders that the command line names."""
    note: Callable[[str], None]

    def request(self, attempt: Path) -> LaunchRequest:
        """The question to the launcher, with what plugins propose for the environment."""
        request = LaunchRequest(
            argv=self.argv,
            options=self.options,
            experiment=self.experiment,
            backend=self.plugins.backend(self.experiment.backend),
            attempt=attempt,
            environ=self.environ,
            platform=self.platform,
            devices=self.devices,
            note=self.note,
            nested=self.argv[0] in self.plugins.named("primus_launchers"),
            primusfile=self.primusfile,
            paths=self.paths,
        )
        proposed = self.plugins.contributions("primus_launch_env", request=request)
        return replace(request, defaults=tuple(contribution.record for contribution in proposed))

    def plan(self, request: LaunchRequest) -> Plan:
        """The launcher's answer, with the files of the attempt in front and the configuration's secrets."""
        launcher = self.plugins.select("primus_launchers", self.launcher)
        plan: Plan = launcher.load(launcher.record.plan)(request)
        if plan.again:
            return replace(plan, inside=_inside(request, plan))
        task, secrets = job.Job.of(self.experiment, self.primusfile)
        files = folder.files(request.attempt, self.experiment, task)
        hidden = (
            EnvVar(name=name, value=value, origin="a secret of the configuration", secret=True)
            for name, value in secrets.items()
        )
        return replace(plan, files=(*files, *plan.files), env=(*plan.env, *hidden))

    def secrets(self, plan: Plan) -> set[str]:
        """Every secret that is known here, for scrubbing: those that were replaced by others, too."""
        found = {*secret_values(self.environ), *(var.value for var in plan.env if var.secret)}
        experiment = self.experiment
        trees = {
            "": experiment.config,
            "env": experiment.env,
            "launch": experiment.launch,
            "metrics": experiment.metrics,
        }
        for section, tree in trees.items():
            for path, leaf in tree.leaves():
                if ".".join((section, *path) if section else path) in experiment.secrets:
                    found |= {str(value) for value in _history(leaf)}
        return found


def _inside(request: LaunchRequest, plan: Plan) -> tuple[EnvVar, ...]:
    """The workers' environment as the launcher inside resolves it, with this machine's defaults."""
    names = {var.name: var.value for var in plan.env if var.name == env.SHELL_NAMES}
    options = {**request.options, "env": (*request.options.get("env", ()), *env.behind(request.argv))}
    return env.resolve(replace(request, environ={**request.environ, **names}, options=options), request.defaults)


def _history(leaf: Leaf) -> Iterator[Any]:
    node: Leaf | Tree | None = leaf
    while isinstance(node, Leaf):
        yield node.value
        node = node.replaced
