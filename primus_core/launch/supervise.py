"""Carry a plan out: one child, its signals, its end, and nothing of it left behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from primus_core.errors import ExitCode
from primus_core.launch import env, nested
from primus_core.launch.plan import Plan
from primus_core.launch.rootcause import Ending, explain, leave_word
from primus_core.launch.watchdog import Hang, watching
from primus_core.run import heartbeat

LAUNCHER_LOG = "logs/launcher.log"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_STOPPING = (signal.SIGTERM, signal.SIGUSR1)
_SAME_SIGNAL = 1.0
_PR_SET_PDEATHSIG = 1
_LIFELINE_AFTER = 10.0
_PATIENCE = 10.0


def carry_out(
    plan: Plan, attempt: Path, environ: Mapping[str, str], say: Callable[[str], None], secrets: Collection[str] = ()
) -> ExitCode:
    """Write the plan's files, run its command and wait for it; ``say`` gets the story of a failure.

    SIGINT, SIGTERM, SIGHUP and SIGUSR1 go on to the child. Writes ``result.json``. Where another primus started this
    one, that one tells the story and writes the result, of all machines.
    """
    inner = env.OUTER in environ
    if plan.node and inner:  # a machine that has an attempt of its own writes its own files
        nested.files_there(plan.files)
    else:
        write_files(plan)
    (attempt / "logs").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    ending = run(plan, attempt, environ)
    code, story = explain(attempt, ending, secrets) if ending.failed else (ExitCode.DONE, "")
    if inner:
        if ending.hang:
            leave_word(attempt, story)
        return code
    if story:
        say(story)
    result = {
        "exit_code": int(code),
        "seconds": round(time.monotonic() - began, 3),
        "root_cause": story if code else None,
    }
    file = attempt / "result.json"
    try:
        file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        say(f"cannot write {file}: {error.strerror}")
        code = code or ExitCode.ENVIRONMENT
    for number in dict.fromkeys(ending.signals):
        if number in plan.after:
            subprocess.run(plan.after[number], stdin=subprocess.DEVNULL, check=False)
    return code


def submit(plan: Plan, environ: Mapping[str, str]) -> int:
    """Write the plan's files and run its command, which says itself what it did; its status."""
    write_files(plan)
    return subprocess.run(plan.argv, env=env.applied(environ, plan.env), check=False).returncode


def run(plan: Plan, attempt: Path, environ: Mapping[str, str]) -> Ending:
    """Run the plan's command to its end, or to a hang, and remove what is left of it."""
    mark = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    variables = {name: value for name, value in environ.items() if name not in (env.OUTER, env.LIFELINE)}
    variables = env.applied(variables, plan.env) | {env.ATTEMPT: str(attempt), env.LAUNCH: mark}
    if plan.again:
        variables |= {env.OUTER: plan.again} | ({env.LIFELINE: "stdin"} if plan.lifeline else {})
    with ExitStack() as stack:
        log = None if plan.again else stack.enter_context(launcher_log(attempt, plan.node).open("ab"))
        child = subprocess.Popen(
            plan.argv,
            env=variables,
            stdin=subprocess.PIPE if plan.lifeline else subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            preexec_fn=_prepare_outer if plan.again else _prepare_torchrun,
        )
        received = stack.enter_context(_forwarding(child, None if plan.again else lambda: _can_stop(attempt, mark)))
        if env.LIFELINE in environ:
            nested.hold_on(lambda: bool(received))
        hangs: list[Hang] = []
        if not plan.again:
            hangs = stack.enter_context(watching(attempt, plan.hang_timeout, lambda: _end(child, mark)))
        status = child.wait()
        for argv in plan.cleanup:
            subprocess.run(argv, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    end_leftovers(mark)
    return Ending(status=status, signals=tuple(received), again=plan.again, hang=hangs[0] if hangs else None)


def _end(child: subprocess.Popen[bytes], mark: str) -> None:
    """End torchrun in order, its ranks at once: they would wait for one another."""
    with suppress(ProcessLookupError):
        child.terminate()
    for pid in set(_marked(mark)) - {child.pid}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()


def launcher_log(attempt: Path, node: int) -> Path:
    """Where what torchrun says on one machine is kept."""
    return attempt / (f"logs/launcher-{node}.log" if node else LAUNCHER_LOG)


def write_files(plan: Plan) -> None:
    """The plan's files, with their folders; each is there whole or not at all."""
    for file in plan.files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        new = file.path.with_name(f".{file.path.name}.new")
        new.write_text(file.text, encoding="utf-8")
        new.replace(file.path)


def end_leftovers(mark: str, patience: float = 5.0) -> frozenset[int]:
    """Kill the processes with this mark that are still there, and wait until they are gone; returns their ids."""
    found: set[int] = set()
    limit = time.monotonic() + patience
    while (alive := set(_marked(mark))) and time.monotonic() < limit:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found |= alive
        time.sleep(0.02)
    return frozenset(found)


def _marked(mark: str) -> Iterator[int]:
    variable = f"{env.LAUNCH}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to somebody else
            continue
        if variable in variables and int(folder.name) != os.getpid():
            yield int(folder.name)


def _can_stop(attempt: Path, mark: str) -> set[int]:
    """The ranks of this machine, where all of them stop in order when they are asked to."""
    states = [
        state for state in heartbeat.read_all(attempt / "ranks").values() if state["host"] == socket.gethostname()
    ]
    alive = set(_marked(mark))
    running = [state for state in states if state["pid"] in alive and state["phase"] != "finished"]
    return {state["pid"] for state in running} if all(state.get("stops") for state in running) else set()


@contextmanager
def _forwarding(child: subprocess.Popen[bytes], stoppable: Callable[[], set[int]] | None) -> Iterator[list[int]]:
    """Act on signals; yields those that came.

    The first SIGTERM or SIGUSR1 asks ranks to save and stop, where they can; all others go on to the child. What comes
    after the first ends ranks at once. Slurm may send the same signal twice.
    """
    received: list[int] = []
    asked: list[float] = []

    def forward(number: int, frame: object) -> None:
        now = time.monotonic()
        if asked and now - asked[-1] < _SAME_SIGNAL:
            return
        received.append(number)
        if child.poll() is None:
            ranks = stoppable() if stoppable and (number in _STOPPING or asked) else set[int]()
            for pid in ranks:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if asked else signal.SIGUSR1)
            if not ranks or asked:
                deaf = stoppable is not None and number == signal.SIGUSR1
                child.send_signal(signal.SIGTERM if deaf else number)
            asked.append(now)
            if child.stdin and len(received) == 1:
                threading.Thread(target=_let_go, args=(child,), daemon=True).start()

    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup stays nohup
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """End the lifeline of a child that a signal did not reach, as the first process of a container may not have been
    ready for it."""
    time.sleep(_LIFELINE_AFTER)
    if child.stdin:
        child.stdin.close()


def _prepare_outer() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prepare_torchrun() -> None:
    """SIGUSR1 is for ranks: Slurm sends it to every process of a step."""
    _prepare_outer()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
