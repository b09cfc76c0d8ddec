"""The ``direct`` launcher: torchrun on this machine, for one rank as for many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, Origin, Problem
from primus_core.launch import env, hosts
from primus_core.launch.plan import Plan
from primus_core.plugins.records import EnvVar
from primus_core.run import recovery

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest

OPTIONS = [
    click.Option(["--nproc-per-node", "--nproc"], type=click.IntRange(min=1), help="Ranks on this machine."),
    click.Option(["--nnodes"], type=click.IntRange(min=1), help="Machines."),
    click.Option(["--node-rank"], type=click.IntRange(min=0), help="Which of the machines this is, from 0."),
    click.Option(["--master-addr"], help="Name or address of machine 0."),
    click.Option(["--master-port"], type=click.IntRange(1024, 65535), help="A free port on machine 0."),
    click.Option(
        ["--max-restarts"],
        type=click.IntRange(min=0),
        help="Times that torchrun starts the ranks again after a failure.",
    ),
    click.Option(
        ["--restart"], type=click.IntRange(min=0), help="Times that a new attempt is started after a failure."
    ),
    click.Option(
        ["--hang-timeout"],
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="End when a rank stands still; 0: never.",
    ),
    click.Option(["--env"], multiple=True, metavar="NAME[=VALUE]", help="A variable for the workers."),
]

DEFAULT_PORT = 29400


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Ranks and machines of a launch."""

    nproc_per_node: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nnodes


def plan(request: LaunchRequest) -> Plan:
    """One torchrun agent for this machine; raises ``ConfigError`` when the numbers do not go together."""
    for name, node in request.experiment.launch.items.items():
        if name not in (*_VARIABLES, *_SETTINGS, "container", "slurm"):
            request.note(f"{node.origin}: launch.{name} does nothing with the direct launcher")
    place = topology(request.options, request.experiment.launch, request.environ, devices=_accelerators(request))
    settings = settings_of(request.options, request.experiment.launch)
    words = [sys.executable, "-m", "torch.distributed.run"]
    words += [f"--nnodes={place.nnodes}", f"--nproc-per-node={place.nproc_per_node}"]
    if place.nnodes == 1 and place.master_port is None:
        words += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    else:
        words += [f"--node-rank={place.node_rank}", f"--master-addr={place.master_addr or 'localhost'}"]
        words += [f"--master-port={place.master_port or DEFAULT_PORT}"]
    words += [f"--max-restarts={settings.get('max_restarts', 0)}", "--event-log-handler=console"]
    words += ["-m", "primus_core.run.worker", "--attempt", str(request.attempt)]
    return Plan(
        argv=tuple(words),
        env=(*env.resolve(request, _defaults(request, place)), *_recovery(settings)),
        ranks=place.world_size,
        node=place.node_rank,
        hang_timeout=settings.get("hang_timeout"),
    )


def _recovery(settings: Mapping[str, Any]) -> Iterable[EnvVar]:
    for name, variable in (("on_bad_loss", recovery.ON_BAD_LOSS), ("loss_spike", recovery.LOSS_SPIKE)):
        if name in settings:
            yield env.variable(variable, str(settings[name]), f"launch.{name}")
    if settings.get("max_restarts"):
        # else restarted ranks find the addresses of their predecessors in the agent's store
        yield env.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "primus: a new store for each start")


def settings_of(options: Mapping[str, Any], launch: Tree) -> dict[str, Any]:
    """What is to be done about failures, where it was said: options before ``launch:``. Raises ``ConfigError``."""
    found = {name: node.value for name, node in launch.items.items() if name in _SETTINGS and isinstance(node, Leaf)}
    problems = [
        Problem(launch.items[name].origin, f"{name} must be {_SETTINGS[name]}, not {value!r}")
        for name, value in found.items()
        if not (value is None or _is_setting(name, value))
    ]
    if problems:
        raise ConfigError(problems)
    given = {name: options[name] for name in _SETTINGS if options.get(name) is not None}
    return {name: value for name, value in found.items() if value is not None} | given


def _is_setting(name: str, value: Any) -> bool:
    if name == "on_bad_loss":
        return value in recovery.POLICIES
    kinds = int if name in ("max_restarts", "restart") else int | float
    return isinstance(value, kinds) and not isinstance(value, bool) and value >= 0


def topology(options: Mapping[str, Any], launch: Any, environ: Mapping[str, str], *, devices: int) -> Topology:
    """From the launcher's options, the experiment's ``launch:``, the usual variables, and what Slurm says."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    if problem := hosts.many_tasks(environ):
        problems.append(Problem(Origin("Slurm"), problem))
    of_step = hosts.topology(environ)
    for name, variable in _VARIABLES.items():
        node = launch.items.get(name)
        if options.get(name) is not None:
            values[name], origins[name] = options[name], Origin(f"command line, --{name.replace('_', '-')}")
        elif isinstance(node, Leaf) and node.value is not None:
            values[name], origins[name] = node.value, node.origin
        elif text := environ.get(variable) or of_step.get(variable):
            values[name] = int(text) if text.isdecimal() else text
            origins[name] = Origin(f"${variable}" if environ.get(variable) else "Slurm")
        else:
            continue
        problems += _wrong(name, values[name], origins[name])
    if problems:
        raise ConfigError(problems)
    values.setdefault("nproc_per_node", devices)
    place = Topology(**values)
    if place.node_rank >= place.nnodes:
        origin = origins["node_rank"]
        problems.append(
            Problem(
                origin, f"node_rank is {place.node_rank}, but there are {place.nnodes} nodes: 0 to {place.nnodes - 1}"
            )
        )
    if place.nnodes > 1 and place.master_addr in (None, "localhost", "127.0.0.1"):
        origin = origins.get("master_addr", origins["nnodes"])
        problems.append(
            Problem(origin, f"nnodes is {place.nnodes}: the others need master_addr, the name of machine 0")
        )
    if problems:
        raise ConfigError(problems)
    return place


_VARIABLES = {
    "nproc_per_node": "GPUS_PER_NODE",
    "nnodes": "NNODES",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
_SETTINGS = {
    "hang_timeout": "a number of seconds, 0 for never",
    "max_restarts": "a whole number from 0",
    "restart": "a whole number from 0",
    "on_bad_loss": f"one of {', '.join(recovery.POLICIES)}",
    "loss_spike": "a factor from 0",
}
_LOWEST = {"nproc_per_node": 1, "nnodes": 1, "node_rank": 0, "master_port": 1024}


def _wrong(name: str, value: Any, origin: Origin) -> Iterable[Problem]:
    if name == "master_addr":
        if not isinstance(value, str):
            yield Problem(origin, f"{name} must be a name or an address, not {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int) or value < _LOWEST[name]:
        yield Problem(origin, f"{name} must be a whole number from {_LOWEST[name]}, not {value!r}")
    elif name == "master_port" and value > 65535:
        yield Problem(origin, f"{name} must be at most 65535, not {value}")


def _accelerators(request: LaunchRequest) -> int:
    return 1 if request.platform == "cpu" else max(1, len(request.devices))


def _defaults(request: LaunchRequest, place: Topology) -> Iterable[EnvVar]:
    threads = max(1, (os.cpu_count() or 1) // place.nproc_per_node) if request.platform == "cpu" else 1
    yield env.variable("OMP_NUM_THREADS", str(threads), "primus: cores per rank" if threads > 1 else "primus")
    yield from request.defaults
