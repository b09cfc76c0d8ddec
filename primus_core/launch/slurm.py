"""The ``slurm`` launcher: primus once more on each machine of a job, by ``srun`` now or by ``sbatch`` later.

A batch job starts ``primus slurm srun`` on its first machine, with the words that stand here. So each start of a job,
after a requeue too, and each task of an array resolves the experiment and makes an attempt of its own.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, Problem, UserError
from primus_core.launch import env, nested
from primus_core.launch.plan import Plan, PlanFile
from primus_core.plugins.records import EnvVar

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest

OPTIONS = [
    click.Option(["--env"], multiple=True, metavar="NAME[=VALUE]", help="A variable for the workers."),
    click.Option(
        ["--requeue"], is_flag=True, help="sbatch: start again after a machine failed, and when time runs out."
    ),
    click.Option(["--primus"], metavar="COMMAND", help="The primus of the machines; by default this one, by its path."),
]

JOB = "PRIMUS_JOB_SCRIPT"
"""The script of the batch job, for the attempts that it makes."""

_SECONDS_TO_SAVE = 180
_PLAIN = re.compile(r"[\w=:,./@%+\[\]*-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Words:
    """Options for Slurm, one or several words each, as they were given."""

    groups: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, words: Iterable[str]) -> Words:
        groups: list[list[str]] = []
        for word in words:
            if word.startswith("-") or not groups:
                groups.append([word])
            else:
                groups[-1].append(word)
        return cls(tuple(map(tuple, groups)))

    def value(self, *names: str) -> str | None:
        """The value that an option was given last, under any of its names; None if it is not there."""
        found = None
        for first, *rest in self.groups:
            for name in names:
                if name.startswith("--"):
                    if first == name:
                        found = rest[0] if rest else ""
                    elif first.startswith(f"{name}="):
                        found = first.removeprefix(f"{name}=")
                elif first.startswith(name) and not first.startswith("--"):
                    found = first.removeprefix(name) or (rest[0] if rest else "")
        return found

    def has(self, *names: str) -> bool:
        return self.value(*names) is not None


def plan(request: LaunchRequest) -> Plan:
    """``srun`` or ``sbatch``; raises ``UserError`` for options that would keep primus from working."""
    extra = tuple(request.options.get("extra", ()))
    mode, extra = (extra[0], extra[1:]) if extra[:1] in (("srun",), ("sbatch",)) else ("srun", extra)
    words = Words.of((*_of_file(request), *extra))
    if stray := [group[0] for group in words.groups[:1] if not group[0].startswith("-")]:
        raise UserError(f"slurm: unexpected word {stray[0]!r}; write: slurm srun|sbatch [its options] -- train ...")
    if "ALL" not in (words.value("--export") or "ALL").split(","):
        raise UserError("slurm: --export without ALL keeps back what primus tells its workers: --export=ALL,NAME=VALUE")
    named = list(env.of_command_line(request))
    inner = [var.name for var in named]
    return (srun if mode == "srun" else sbatch)(request, words, named, inner)


def srun(request: LaunchRequest, words: Words, named: list[EnvVar], names: list[str]) -> Plan:
    """One task on each machine, of a new job or within the one that this process belongs to."""
    inner, hidden = nested.command(request, _primus(request), names)
    job = request.environ.get("SLURM_JOB_ID")
    requeue: dict[int, tuple[str, ...]] = {}
    if job and request.options.get("requeue"):
        requeue[signal.SIGUSR1] = ("scontrol", "requeue", job)
    script = request.environ.get(JOB)
    return Plan(
        argv=("srun", *_defaults(request.environ, words), *(word for group in words.groups for word in group), *inner),
        env=(*named, *hidden),
        files=(PlanFile(path=request.attempt / "job.sh", text=Path(script).read_text()),) if script else (),
        ranks=_ranks(request, words),
        again="srun",
        after=requeue,
    )


def _ranks(request: LaunchRequest, words: Words) -> int | None:
    nodes = words.value("-N", "--nodes") or request.environ.get("SLURM_JOB_NUM_NODES", "")
    gpus = (words.value("--gpus-per-node") or "").rpartition(":")[2]
    return nested.ranks(request, int(nodes) if nodes.isdecimal() else None, int(gpus) if gpus.isdecimal() else None)


def _defaults(environ: Mapping[str, str], words: Words) -> Iterator[str]:
    if nodes := environ.get("SLURM_JOB_NUM_NODES"):  # inside of a job
        if not words.has("-N", "--nodes"):
            yield f"--nodes={nodes}"
        if not words.has("-n", "--ntasks") and not words.has("-N", "--nodes"):
            yield f"--ntasks={nodes}"
        if "SLURM_CPUS_PER_TASK" in environ and not words.has("-c", "--cpus-per-task"):
            yield f"--cpus-per-task={environ['SLURM_CPUS_PER_TASK']}"  # srun does not take it from the job by itself
    if not words.has("--ntasks-per-node"):
        yield "--ntasks-per-node=1"
    if not words.has("--cpu-bind"):
        yield "--cpu-bind=none"  # all processors for the one task that starts the ranks
    yield from ("--kill-on-bad-exit=1", "--quit-on-interrupt")


def sbatch(request: LaunchRequest, words: Words, named: list[EnvVar], names: list[str]) -> Plan:
    """A job for later: its script, and the command that hands it in."""
    script = request.attempt / "job.sh"
    argv, hidden = nested.without_secrets(request.argv, request.experiment.secrets)
    file = ("--primusfile", str(request.primusfile.absolute())) if request.primusfile else ()
    primus = [word for given in _given_primus(request) for word in ("--primus", given)]
    again = [*_primus(request), *file, "slurm", *primus, *(word for name in names for word in ("--env", name))]
    again += ["--requeue"] if request.options.get("requeue") else []
    again += ["srun", "--", *argv]
    groups = [*_batch_defaults(request, words), *words.groups]
    awkward = [group for group in groups if not all(map(_PLAIN.fullmatch, group))]
    lines = [f"#SBATCH {' '.join(group)}" for group in groups if group not in awkward]
    text = "\n".join(
        ("#!/bin/bash", *lines, "", f"export {JOB}={shlex.quote(str(script))}", f"exec {_broken(again)}", "")
    )
    return Plan(
        argv=("sbatch", *(word for group in awkward for word in group), str(script)),
        env=(*named, *hidden),
        files=(PlanFile(path=script, text=text),),
        ranks=_ranks(request, words),
        submits=True,
        again="sbatch",
    )


def _batch_defaults(request: LaunchRequest, words: Words) -> Iterator[tuple[str, ...]]:
    """What a job should have and was not given."""
    if not words.has("-J", "--job-name"):
        yield (f"--job-name={re.sub(r'[^A-Za-z0-9_.-]', '_', request.experiment.exp_name)}",)
    if not words.has("-o", "--output"):
        home = str(request.attempt).replace("%", "%%")  # Slurm takes %j for the number
        yield (f"--output={home}/{'%A_%a' if words.has('-a', '--array') else '%j'}.out",)
    if not words.has("--ntasks-per-node"):
        yield ("--ntasks-per-node=1",)
    if not words.has("--signal"):
        yield (f"--signal=B:USR1@{_SECONDS_TO_SAVE}",)
    if request.options.get("requeue"):
        yield ("--requeue",)
    if not words.has("--open-mode"):
        yield ("--open-mode=append",)


def _broken(words: Iterable[str]) -> str:
    """A command with a line for each launcher."""
    return " ".join("\\\n  --" if word == "--" else shlex.quote(word) for word in words)


def _given_primus(request: LaunchRequest) -> tuple[str, ...]:
    given = request.options.get("primus")
    return (given,) if given else ()


def _primus(request: LaunchRequest) -> tuple[str, ...]:
    return _given_primus(request) or nested.this_primus()


def _of_file(request: LaunchRequest) -> Iterator[str]:
    """The options of ``launch.slurm``; the command line's stand behind them and so win."""
    section = request.experiment.launch.find(("slurm",))
    problems = []
    for name, node in section.items.items() if isinstance(section, Tree) else ():
        if not isinstance(node, Leaf) or isinstance(node.value, list | dict):
            problems.append(Problem(node.origin, f"launch.slurm.{name} must be one value"))
        elif node.value is True:
            yield f"--{name.replace('_', '-')}"
        elif node.value not in (None, False):
            yield f"--{name.replace('_', '-')}={_text(node)}"
    if problems:
        raise ConfigError(problems)


def _text(leaf: Leaf) -> Any:
    return leaf.written if isinstance(leaf.written, str) else leaf.value
