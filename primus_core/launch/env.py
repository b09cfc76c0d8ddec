"""The environment of the workers: who set what, and who wins.

Highest first: ``--env`` > the experiment's ``env:`` > the user's shell > defaults of the platform and of plugins >
the image of a container.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from primus_core.config.tree import Leaf
from primus_core.errors import ConfigError, Problem, UserError
from primus_core.plugins.records import EnvVar
from primus_core.secrets import is_secret_variable

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest

ATTEMPT = "PRIMUS_ATTEMPT"
"""Marks every process of an attempt, on all machines and in all containers."""
LAUNCH = "PRIMUS_LAUNCH"
"""Marks what one primus started, so that what is left over can be found."""
OUTER = "PRIMUS_OUTER"
"""Set where primus was started by a launcher of another primus, whose attempt it joins."""
LIFELINE = "PRIMUS_LIFELINE"
"""Set where the end of standard input is the end of whoever started this."""
SHELL_NAMES = "PRIMUS_SHELL_NAMES"
"""In a container: the variables that come from the user's shell; what else is set there is of the image."""

OWN = (ATTEMPT, LAUNCH, OUTER, LIFELINE, SHELL_NAMES)

SHELL = "your shell"


def variable(name: str, value: str, origin: str, secret: bool = False) -> EnvVar:
    """A variable; it is a secret if its name says so, whatever ``secret`` is."""
    return EnvVar(name=name, value=value, origin=origin, secret=secret or is_secret_variable(name))


def resolve(request: LaunchRequest, defaults: Iterable[EnvVar]) -> tuple[EnvVar, ...]:
    """What is to be set for the workers, by name; of the shell's variables only those that stand against a default.

    Raises ``UserError`` for a variable that is given by name alone and that the shell does not have.
    """
    chosen: dict[str, EnvVar] = {}
    shell = shell_names(request.environ)
    for default in defaults:
        if default.name in shell:
            origin = f"{SHELL}, before {default.origin}"
            chosen[default.name] = variable(default.name, request.environ[default.name], origin)
        else:
            chosen[default.name] = default
    for stronger in (*_of_experiment(request), *of_command_line(request)):
        chosen[stronger.name] = stronger
    return tuple(sorted(chosen.values(), key=lambda var: var.name))


def _of_experiment(request: LaunchRequest) -> Iterable[EnvVar]:
    problems = []
    for name, node in request.experiment.env.items.items():
        if not isinstance(node, Leaf) or isinstance(node.value, list):
            problems.append(Problem(node.origin, f"env.{name} must be one value"))
        elif node.value is None:
            if name not in request.environ:
                problems.append(Problem(node.key, f"env.{name} has no value, and your shell does not set {name}"))
            else:
                yield variable(name, request.environ[name], f"{SHELL}, named at {node.key}")
        else:
            hidden = f"env.{name}" in request.experiment.secrets
            yield variable(name, text(node.value), str(node.origin), hidden)
    if problems:
        raise ConfigError(problems)


def of_command_line(request: LaunchRequest) -> Iterable[EnvVar]:
    """The variables of ``--env``. Raises ``UserError`` for a bad name, and for one that the shell does not have."""
    for word in request.options.get("env") or ():
        name, equals, value = word.partition("=")
        if not name.isidentifier():
            raise UserError(f"--env {name}: not the name of a variable; write --env NAME=VALUE, or --env NAME")
        if not equals and name not in request.environ:
            raise UserError(f"--env {name}: your shell does not set it; write --env {name}=VALUE")
        yield variable(name, value if equals else request.environ[name], "command line, --env")


def shell_names(environ: Mapping[str, str]) -> Collection[str]:
    """The variables that the user's shell set; in a container the image set others."""
    return environ[SHELL_NAMES].split(",") if SHELL_NAMES in environ else environ.keys()


def behind(argv: Sequence[str]) -> tuple[str, ...]:
    """The ``NAME[=VALUE]`` of all ``--env`` among the words of launchers and commands inside."""
    after = (word for before, word in pairwise(argv) if before == "--env")
    return (*after, *(word.removeprefix("--env=") for word in argv if word.startswith("--env=")))


def text(value: object) -> str:
    """A YAML value as a variable's text: ``true`` is ``1``, ``false`` is ``0``."""
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def applied(environ: Mapping[str, str], variables: Iterable[EnvVar]) -> dict[str, str]:
    """``environ`` with the variables set."""
    return dict(environ) | {var.name: var.value for var in variables}
