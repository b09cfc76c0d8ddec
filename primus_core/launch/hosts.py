"""Machines as Slurm tells of them, to a process that it started on each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping


def expand(text: str) -> tuple[str, ...]:
    """The names in a list as Slurm writes it: ``n[1-3,07],login`` -> ``n1 n2 n3 n07 login``."""
    return tuple(name for word in _split(text) for name in _names(word))


def _split(text: str) -> Iterator[str]:
    """At commas outside of brackets."""
    depth, start = 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield text[start:position]
            start = position + 1
    if start < len(text):
        yield text[start:]


def _names(word: str) -> Iterator[str]:
    parts = re.split(r"\[([^\]]*)\]", word)
    choices = [[part] if index % 2 == 0 else list(_numbers(part)) for index, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process, as one of the tasks of a job step."""
    return "SLURM_STEP_NODELIST" in environ and "SLURM_NODEID" in environ


def topology(environ: Mapping[str, str]) -> dict[str, str]:
    """``NNODES``, ``NODE_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` of a job step; empty outside of one.

    The port follows from the job's number, so that two jobs on one machine do not meet.
    """
    if not in_step(environ):
        return {}
    names = expand(environ["SLURM_STEP_NODELIST"])
    port = 20000 + int(environ.get("SLURM_JOB_ID", "0")) % 10000
    found = {"NNODES": str(len(names)), "NODE_RANK": environ["SLURM_NODEID"]}
    return found | ({"MASTER_ADDR": names[0], "MASTER_PORT": str(port)} if len(names) > 1 else {})


def many_tasks(environ: Mapping[str, str]) -> str | None:
    """What is wrong with a job step that has more tasks than machines; None if nothing is."""
    tasks, nodes = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_STEP_NUM_NODES", "")
    if in_step(environ) and tasks != nodes:
        return f"srun started {tasks} tasks on {nodes} machines; primus starts the ranks: use --ntasks-per-node=1"
    return None


def node_of(environ: Mapping[str, str]) -> int:
    """Which of the run's machines this is, as far as variables tell."""
    text = environ.get("NODE_RANK") or topology(environ).get("NODE_RANK", "0")
    return int(text) if text.isdecimal() else 0
