"""One rank: ``python -m primus_core.run.worker --attempt DIR``, started by torchrun. Imports no torch of its own."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn, TextIO

from primus_core.errors import EnvironmentFault, PrimusError
from primus_core.patches.registry import Registry
from primus_core.platforms.detect import current
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import load
from primus_core.run import failure, job, signals, sinks
from primus_core.run.active import ActiveRun
from primus_core.run.context import Place
from primus_core.run.heartbeat import Heartbeat
from primus_core.run.recovery import Recovery
from primus_core.secrets import secret_values

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    """Train; returns the exit code."""
    parser = argparse.ArgumentParser(prog="primus_core.run.worker", allow_abbrev=False)
    parser.add_argument("--attempt", type=Path, required=True)
    attempt: Path = parser.parse_args(arguments).attempt
    die_with_parent()
    place = place_of_this_process()
    console = redirect_output(attempt / "logs" / f"rank-{place.rank}.log")
    heartbeat = Heartbeat(attempt / "ranks", place.rank, place.world_size)
    failure.set_aside(attempt / "errors", place.rank)
    signals.show_on_request(attempt, place.rank)
    stop = signals.Stop()
    try:
        task = job.read(attempt)
        plugins = PluginManager.load(Path(task.primusfile) if task.primusfile else None)
    except PrimusError as error:
        return int(_record(error, attempt, heartbeat)["exit_code"])
    run: ActiveRun | None = None
    try:
        run = set_up(task, attempt, place, plugins, heartbeat, stop)
        run.start(sinks.open_all(run, plugins, console))
        train(run)
    except BaseException as error:  # whatever it is, it must be on disk before this process ends
        infos = plugins.infos[1:]
        secrets = task.secret_values()
        record = _record(error, attempt, heartbeat, lambda file: any(info.owns(file) for info in infos), secrets)
        if run is not None:
            run.finish(error, record["error"])
        return int(record["exit_code"])
    run.finish()
    return 0


def set_up(
    task: job.Job, attempt: Path, place: Place, plugins: PluginManager, heartbeat: Heartbeat, stop: signals.Stop
) -> ActiveRun:
    """The run, seen from this process."""
    backend = plugins.backend(task.backend)
    platform, devices = current(plugins)
    return ActiveRun(
        task,
        attempt=attempt,
        backend=backend,
        place=place,
        platform=platform.name,
        devices=devices,
        plugins=plugins,
        patches=Registry.of(plugins, backend),
        heartbeat=heartbeat,
        stop=stop,
        recovery=Recovery.of(os.environ),
    )


def train(run: ActiveRun) -> None:
    """Hand over to the backend. An engine that ends the process in order, by ``sys.exit()``, is done."""
    run.enter("import")
    run.apply_patches("import")
    trainer = load(run.backend.trainer)
    run.enter("build")
    try:
        trainer(run)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _record(
    error: BaseException,
    attempt: Path,
    heartbeat: Heartbeat,
    owned: Callable[[str], bool] = lambda file: False,
    secrets: Collection[str] = (),
) -> dict[str, Any]:
    sys.stdout.flush()
    return failure.write(
        attempt / "errors",
        error,
        rank=heartbeat.rank,
        phase=heartbeat.phase,
        step=heartbeat.step,
        owned=owned,
        secrets={*secret_values(os.environ), *secrets},
    )


def place_of_this_process() -> Place:
    """From torchrun's variables."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if missing := [name for name in names if name not in os.environ]:
        raise EnvironmentFault(f"a worker is started by a launcher, which sets {', '.join(missing)}")
    rank, local_rank, world_size, local_world_size = (int(os.environ[name]) for name in names)
    return Place(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


def die_with_parent() -> None:
    """Ask Linux to kill this process when torchrun's agent dies, whatever kills that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def redirect_output(log: Path) -> TextIO:
    """Send all output of this process, C libraries' too, to ``log``; returns what standard output was."""
    log.parent.mkdir(parents=True, exist_ok=True)
    encoding = sys.stdout.encoding
    console = os.fdopen(os.dup(1), "w", encoding=encoding, errors="replace", buffering=1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
    return console


def leave(code: int) -> NoReturn:
    """End this process. After a failure at once: engines' destructors may wait for ranks that are gone."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(0)


if __name__ == "__main__":
    leave(main())
