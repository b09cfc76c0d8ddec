"""Carry a plan out: one child, its signals, its end, and nothing of it left behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from primus_core.errors import ExitCode
from primus_core.launch import env
from primus_core.launch.plan import Plan
from primus_core.launch.rootcause import Ending, explain

LAUNCHER_LOG = "logs/launcher.log"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def carry_out(
    plan: Plan, attempt: Path, environ: Mapping[str, str], say: Callable[[str], None], secrets: Collection[str] = ()
) -> ExitCode:
    """Write the plan's files, run its command and wait for it; ``say`` gets the story of a failure.

    SIGINT, SIGTERM and SIGHUP go on to the child. Writes ``result.json``.
    """
    write_files(plan)
    (attempt / "logs").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (attempt / LAUNCHER_LOG).open("ab") as log:
        child = subprocess.Popen(
            plan.argv,
            env=env.applied(environ, plan.env) | {env.ATTEMPT: str(attempt)},
            stdin=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        with _forwarding(child) as received:
            status = child.wait()
    end_leftovers(attempt)
    ending = Ending(status=status, signals=tuple(received))
    code, story = explain(attempt, ending, secrets) if status or received else (ExitCode.DONE, "")
    if story:
        say(story)
    result = {
        "exit_code": int(code),
        "seconds": round(time.monotonic() - began, 3),
        "root_cause": story if code else None,
    }
    (attempt / "result.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return code


def write_files(plan: Plan) -> None:
    """The plan's files, with their folders."""
    for file in plan.files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.text, encoding="utf-8")


def end_leftovers(attempt: Path, patience: float = 5.0) -> frozenset[int]:
    """Kill the processes of this attempt that are still there, and wait until they are gone; returns their ids."""
    found: set[int] = set()
    limit = time.monotonic() + patience
    while (alive := set(_marked(attempt))) and time.monotonic() < limit:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found |= alive
        time.sleep(0.02)
    return frozenset(found)


def _marked(attempt: Path) -> Iterator[int]:
    mark = f"{env.ATTEMPT}={attempt}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to somebody else
            continue
        if mark in variables and int(folder.name) != os.getpid():
            yield int(folder.name)


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on to the child, once each; yields those that came."""
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        if child.poll() is None:
            child.send_signal(number)

    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup stays nohup
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
