"""The folder of an attempt: what was asked for, where it ran, and with which versions."""

from __future__ import annotations

import itertools
import json
import os
import platform as host
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.errors import EnvironmentFault
from primus_core.launch.plan import PlanFile
from primus_core.run import fingerprint, job
from primus_core.secrets import MASK, is_secret_variable, mask_assignments, mask_words, scrub

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.records import Device


def next_attempt(experiment: Path, kind: str = "attempts") -> Path:
    """The folder that the next attempt (or one of another ``kind``) will have, if nobody is faster."""
    folder = experiment.absolute() / kind
    taken = [int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    return folder / f"{max(taken, default=0) + 1:04}"


def create(experiment: Path, kind: str = "attempts") -> Path:
    """A new attempt's folder, this caller's alone: of two that start at once, each gets its own.

    Raises ``EnvironmentFault`` where it cannot be made.
    """
    first = next_attempt(experiment, kind)
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(int(first.name)):
            folder = first.parent / f"{number:04}"
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise EnvironmentFault(f"cannot make a folder for the run: {error.filename}: {error.strerror}") from error
    raise AssertionError


def files(attempt: Path, experiment: Experiment, task: job.Job) -> tuple[PlanFile, ...]:
    """What workers and people need to have before the run starts."""
    from primus_core.config import render

    return (
        PlanFile(path=attempt / "config.yaml", text=render.dump(experiment)),
        PlanFile(path=attempt / job.FILE, text=task.text()),
    )


def describe(
    experiment: Experiment,
    *,
    argv: Iterable[str],
    launcher: str,
    options: Mapping[str, Any],
    platform: str,
    devices: Sequence[Device],
    environ: Mapping[str, str],
    primusfile: Path | None = None,
) -> dict[str, Any]:
    """What ``run.json`` says: the command, the place, and the versions of everything, as they are now."""
    return {
        "name": experiment.exp_name,
        "stage": experiment.stage,
        "backend": experiment.backend,
        "model": experiment.model,
        "platform": platform,
        "devices": [{"name": device.name, "arch": device.arch, "memory": device.memory} for device in devices],
        "launcher": {"name": launcher, "options": _masked(options)},
        "argv": mask_words(argv),
        "primusfile": str(primusfile.absolute()) if primusfile else None,
        "cwd": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": {
            "name": socket.gethostname(),
            "pid": os.getpid(),
            "system": host.platform(),
            "python": host.python_version(),
        },
        "git_commit": _git("rev-parse", "HEAD"),
        "files": [str(file) for file in experiment.files],
        "data": fingerprint.of_config(experiment.config, experiment.folder),
        "versions": dict(sorted((d.name, d.version) for d in metadata.distributions() if d.name)),
        "environment": {name: MASK if is_secret_variable(name) else environ[name] for name in sorted(environ)},
    }


def inside(attempt: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """``about`` as seen by workers, in a container or on another machine, with what the attempt's record says of the
    command that started it all."""
    outer = json.loads((attempt / "run.json").read_text(encoding="utf-8"))
    names = ("argv", "launcher", "primusfile", "cwd", "started", "host", "git_commit")
    return {**about, **{name: outer[name] for name in names}, "inside": {"host": about["host"]}}


def record(attempt: Path, experiment: Experiment, about: Mapping[str, Any], secrets: Iterable[str]) -> None:
    """Write down where everything came from: ``origins.json``, ``run.json`` (``about``), ``git.diff``."""
    from primus_core.config import render

    secrets = tuple(secrets)
    _write(attempt / "run.json", _json(about), secrets)
    _write(attempt / "origins.json", _json(render.origins(experiment)), secrets)
    if (changes := uncommitted()) is not None:
        _write(attempt / "git.diff", changes, secrets)


def uncommitted() -> str | None:
    """The changes in the working folder's repository, secrets masked; None where there is none."""
    diff = _git("diff", "HEAD")
    return mask_assignments(diff + "\n") if diff else diff


def _masked(options: Mapping[str, Any]) -> dict[str, Any]:
    """A launcher's options as plain data; of variables with secrets only the names are kept."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, list | tuple):
            plain[name] = [_named(str(word)) if name == "env" else str(word) for word in value]
        else:
            plain[name] = value if value is None or isinstance(value, bool | int | float) else str(value)
    return plain


def _named(word: str) -> str:
    name = word.partition("=")[0]
    return name if is_secret_variable(name) else word


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, text: str, secrets: Iterable[str]) -> None:
    path.write_text(scrub(text, secrets), encoding="utf-8", errors="surrogateescape")


def _git(*words: str) -> str | None:
    """What git says about the working folder; None where there is no git, or no repository."""
    try:
        answer = subprocess.run(["git", *words], capture_output=True, text=True, errors="surrogateescape", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.rstrip("\n")
