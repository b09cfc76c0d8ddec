"""Launchers that start primus again elsewhere: its command line there, and how the two share one attempt."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.config.render import secret_variable
from primus_core.config.tree import Leaf
from primus_core.errors import EnvironmentFault
from primus_core.launch.env import ATTEMPT, OUTER, variable
from primus_core.plugins.records import EnvVar
from primus_core.secrets import is_secret_key, is_secret_variable

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest, PlanFile

_WAIT = 120.0
_PATIENCE = 120.0
_ASSIGNMENT = re.compile(r"(?P<head>(?:--)?(?P<key>[A-Za-z_][\w.\-]*)=)(?P<value>.*)", re.DOTALL)


def command(
    request: LaunchRequest, primus: Iterable[str], names: Iterable[str]
) -> tuple[tuple[str, ...], list[EnvVar]]:
    """The words that start primus again, and the secrets that stood among them, as variables.

    ``names`` are variables from this launcher's command line: they win there as they do here.
    """
    words, secrets = without_secrets(request.argv, request.experiment.secrets)
    launcher, rest = (words[0], words[1:]) if request.nested else ("direct", ("--", *words))
    options = [word for name in names for word in ("--env", name)]
    file = ("--primusfile", str(request.primusfile.absolute())) if request.primusfile else ()
    return (*primus, *file, launcher, *options, *rest), secrets


def without_secrets(words: Iterable[str], secret_keys: Iterable[str]) -> tuple[tuple[str, ...], list[EnvVar]]:
    """Words whose secrets are replaced by ``${VARIABLE}`` (of ``--env NAME=VALUE``: left out), and the variables."""
    known = frozenset(secret_keys)
    found: list[EnvVar] = []
    safe: list[str] = []

    def hide(key: str, value: str) -> str:
        name = secret_variable(key.replace("-", "_"))
        found.append(variable(name, value, "a secret of the command line", secret=True))
        return f"${{{name}}}"

    def hidden(key: str) -> bool:
        return is_secret_key(key) or key.replace("-", "_") in known

    before = ""
    for word in words:
        match = _ASSIGNMENT.fullmatch(word)
        if before == "--env" or (match and match["head"] == "--env="):
            text = word if before == "--env" else word.removeprefix("--env=")
            name, equals, value = text.partition("=")
            if equals and is_secret_variable(name):
                found.append(variable(name, value, "command line, --env"))
                word = name if before == "--env" else f"--env={name}"
        elif match and hidden(match["key"]) and "${" not in word:
            word = match["head"] + hide(match["key"], match["value"])
        elif before.startswith("--") and hidden(before[2:]) and not word.startswith("--") and "${" not in word:
            word = hide(before[2:], word)
        safe.append(word)
        before = word
    return tuple(safe), found


def ranks(request: LaunchRequest, nodes: int | None, per_node: int | None) -> int | None:
    """How many ranks ``direct`` will start inside, on ``nodes`` machines; None where it cannot be told from here.

    ``per_node`` is what one machine starts where nobody says a number.
    """
    file = request.experiment.launch.items.get("nproc_per_node")
    candidates: tuple[Any, ...] = (
        *(_value(request.argv, name) for name in ("--nproc-per-node", "--nproc")),
        file.value if isinstance(file, Leaf) else None,
        request.environ.get("GPUS_PER_NODE"),
        per_node,
    )
    text = str(next((value for value in candidates if value is not None), ""))
    return nodes * int(text) if nodes is not None and text.isdecimal() else None


def _value(words: Sequence[str], option: str) -> str | None:
    """The value of an option among words, of its last use."""
    found = [word for before, word in pairwise(words) if before == option]
    found += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return found[-1] if found else None


def this_primus() -> tuple[str, ...]:
    """The words that call the primus of this process, for machines that see the same files."""
    script = Path(sys.executable).with_name("primus")
    return (str(script),) if script.exists() else (sys.executable, "-m", "primus_core")


def joined(environ: Mapping[str, str]) -> Path | None:
    """The folder of the attempt that this process is a part of, if another primus made it."""
    if OUTER not in environ or ATTEMPT not in environ:
        return None
    attempt = Path(environ[ATTEMPT])
    wait_for([attempt])
    return attempt


def wait_for(paths: Iterable[Path], seconds: float = _WAIT) -> None:
    """Wait until files that another machine writes are visible here; raises ``EnvironmentFault``."""
    limit = time.monotonic() + seconds
    for path in paths:
        while not path.exists():
            if time.monotonic() > limit:
                raise EnvironmentFault(
                    f"{path} did not appear within {seconds:.0f} seconds: the workspace must lie on a file system that "
                    "all machines share, and be mounted in containers"
                )
            time.sleep(0.1)


def files_there(files: Iterable[PlanFile]) -> None:
    """Wait for the files that the first machine writes."""
    wait_for(file.path for file in files)


def hold_on(interrupted: Callable[[], bool]) -> None:
    """End this process when standard input ends: in order by SIGTERM, unless that came already; at last by force."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        if not interrupted():
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
