"""Who failed first, of what, and where to read on."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

from primus_core.errors import ExitCode
from primus_core.launch.watchdog import Hang
from primus_core.run import failure, heartbeat, metrics
from primus_core.secrets import scrub

_HANG_STORY = "hang/story.txt"
_TAIL = 8
_TAIL_BYTES = 1 << 16
_FULL = 1 << 20
_EVENT = '{"name": "torchelastic.worker.status.'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the launcher's command ended: its status, and the signals that came from outside.

    ``again`` names the command where it was one that starts primus again.
    """

    status: int
    signals: tuple[int, ...] = ()
    again: str = ""
    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.status or self.signals or self.hang)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """All that is known of one rank. ``status`` is negative for a signal, None where nobody saw it end."""

    rank: int
    status: int | None
    state: Mapping[str, Any]
    error: Mapping[str, Any] | None

    @property
    def silent(self) -> bool:
        """Ended without a word: by a signal that is not torchrun's own, or by ``os._exit()``."""
        return self.error is None and not self.finished and self.status not in (None, 0, -signal.SIGTERM)

    @property
    def finished(self) -> bool:
        return self.error is None and self.state.get("phase") == "finished"

    def end(self) -> str:
        """How it ended, in a few words."""
        if self.error is not None:
            return shorten(str(self.error["error"]), 120)
        if self.status is None:
            return "not seen to end"
        return _status(self.status)


def explain(attempt: Path, ending: Ending, secrets: Collection[str] = ()) -> tuple[ExitCode, str]:
    """The exit code, and the story with the root cause on top."""
    ranks = gather(attempt)
    code, lines = _story(attempt, ranks, ending)
    return code, scrub("\n".join(lines), secrets)


def leave_word(attempt: Path, story: str) -> None:
    """Keep the story of a hang for the primus that started this one: it was not there to see it."""
    file = attempt / _HANG_STORY
    file.parent.mkdir(exist_ok=True)
    file.write_text(story + "\n", encoding="utf-8")


def gather(attempt: Path) -> dict[int, Rank]:
    """What the ranks themselves wrote, and what torchrun saw of their ends."""
    states = heartbeat.read_all(attempt / "ranks")
    errors = failure.read_all(attempt / "errors")
    logs = sorted((attempt / "logs").glob("launcher*.log"))
    statuses = dict(chain.from_iterable(map(seen_by_torchrun, logs)))
    return {
        rank: Rank(rank=rank, status=statuses.get(rank), state=states.get(rank, {}), error=errors.get(rank))
        for rank in sorted({*states, *errors, *statuses})
    }


def seen_by_torchrun(log: Path) -> Iterable[tuple[int, int]]:
    """Rank and status of every failed worker, from the events that the agent writes into its log as JSON."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ():
        start = line.find(_EVENT)
        if start < 0:
            continue
        try:
            event, _ = json.JSONDecoder().raw_decode(line, start)
        except json.JSONDecodeError:  # the agent was killed while it wrote, or somebody wrote into its line
            continue
        about = event["metadata"]
        if about["state"] == "FAILED" and about["global_rank"] is not None:
            (status,) = json.loads(about["metadata"])["exit_code"]
            if status is not None:
                yield about["global_rank"], status


def first(ranks: Iterable[Rank]) -> Rank | None:
    """Who is to blame: a rank that ended silently, as errors of others follow from that; else the earliest error."""
    ranks = tuple(ranks)
    if silent := [rank for rank in ranks if rank.silent]:
        return min(silent, key=lambda rank: rank.state.get("time", 0))
    if failed := [rank for rank in ranks if rank.error is not None]:
        return min(failed, key=lambda rank: rank.error["time"] if rank.error else 0)
    if ended := [rank for rank in ranks if rank.status is not None]:
        return min(ended, key=lambda rank: (rank.status == -signal.SIGTERM, rank.rank))
    return None


def _story(attempt: Path, ranks: Mapping[int, Rank], ending: Ending) -> tuple[ExitCode, list[str]]:
    if ending.signals:
        names = ", ".join(dict.fromkeys(map(signal_name, ending.signals)))
        return ExitCode.TRAINING_FAILED, [f"interrupted: {names}{_saved(attempt, ranks)}", f"run folder: {attempt}"]
    culprit = first(ranks.values())
    if ranks and all(rank.finished for rank in ranks.values()):
        crashes = ", ".join(f"rank {rank.rank}: {rank.end()}" for rank in ranks.values() if rank.status)
        return ExitCode.DONE, [
            f"all ranks finished; after that, while Python shut down: {crashes or 'torchrun failed'}"
        ]
    if ending.hang:
        return ExitCode.HANG, [*ending.hang.lines(attempt), f"run folder: {attempt}"]
    if ending.again and (word := attempt / _HANG_STORY).exists():
        return ExitCode.HANG, word.read_text(encoding="utf-8").splitlines()
    if ending.status < 0 and not ending.again:
        return ExitCode.TRAINING_FAILED, _launcher_killed(attempt, ranks, ending)
    if culprit is None and ending.again:
        return _code_of(ending.status), [
            f"{ending.again} ended with {_status(ending.status)}{' before any rank was there' * (not ranks)}",
            f"run folder: {attempt}",
        ]
    if culprit is None:
        log = attempt / "logs" / "launcher.log"
        return ExitCode.TRAINING_FAILED, [
            f"the launcher ended with exit code {ending.status}, before any rank was there",
            *_tail(log),
            f"run folder: {attempt}",
        ]
    code = ExitCode(culprit.error["exit_code"]) if culprit.error else ExitCode.TRAINING_FAILED
    others = [rank for rank in ranks.values() if rank is not culprit and not rank.finished]
    return code, [
        f"rank {culprit.rank} of {culprit.state.get('world_size', len(ranks))} failed first{_where(culprit)}",
        *_cause(culprit, attempt),
        *_tail(attempt / "logs" / f"rank-{culprit.rank}.log", culprit.error["log_size"] if culprit.error else None),
        *_after(others),
        f"run folder: {attempt}",
    ]


def _saved(attempt: Path, ranks: Mapping[int, Rank]) -> str:
    """What is left of an interrupted run."""
    if not ranks or not all(rank.finished for rank in ranks.values()):
        return ""
    file = attempt / "metrics.jsonl"
    saved = [event["step"] for event in (metrics.read(file) if file.exists() else ()) if event["event"] == "checkpoint"]
    last = max((rank.state["step"] or 0 for rank in ranks.values()), default=0)
    return f"; stopped in order after step {last}" + (f", with the checkpoint of step {saved[-1]}" if saved else "")


def _code_of(status: int) -> ExitCode:
    """The exit code for one of a command that starts primus again: its own, or that of who should have started it."""
    if status in tuple(ExitCode):
        return ExitCode(status)
    return ExitCode.ENVIRONMENT if 125 <= status <= 127 else ExitCode.TRAINING_FAILED


def _status(status: int) -> str:
    return signal_name(-status) if status < 0 else f"exit code {status}"


def _launcher_killed(attempt: Path, ranks: Mapping[int, Rank], ending: Ending) -> list[str]:
    return [
        f"torchrun itself was ended by {signal_name(-ending.status)}, and its ranks with it",
        *(f"  rank {rank.rank} was{_where(rank)}" for rank in ranks.values() if rank.state),
        f"run folder: {attempt}",
    ]


def _where(rank: Rank) -> str:
    known = rank.error or rank.state
    host = f" on {rank.state['host']}" if rank.state else ""
    step = f" at step {known['step']}" if known.get("step") is not None else ""
    return f"{host}, in phase {known['phase']!r}{step}" if known else host


def _cause(culprit: Rank, attempt: Path) -> Iterable[str]:
    if culprit.error is None:
        yield f"  {_fate(culprit, attempt)}"
        return
    yield from (f"  {line}" for line in str(culprit.error["error"]).splitlines())
    if culprit.error["frame"]:
        yield f"  at {culprit.error['frame']}"


def _fate(culprit: Rank, attempt: Path) -> str:
    if culprit.status == -signal.SIGKILL:
        return "killed by SIGKILL: by hand, or by the system for want of memory (see dmesg)"
    if culprit.status is not None and culprit.status < 0:
        return f"killed by {signal_name(-culprit.status)}"
    full = shutil.disk_usage(attempt).free < _FULL
    return f"ended with {culprit.end()} and said nothing{f'; the disk of {attempt} is full' if full else ''}"


def _after(others: list[Rank]) -> Iterable[str]:
    if not others:
        return
    endings: dict[str, list[int]] = {}
    for rank in others:
        endings.setdefault(rank.end(), []).append(rank.rank)
    noun = "other rank" if len(others) == 1 else "other ranks"
    yield f"{len(others)} {noun} ended after it:"
    yield from (
        f"  rank {', '.join(map(str, numbers[:8]))}{' ...' * (len(numbers) > 8)}: {end}"
        for end, numbers in endings.items()
    )


def _tail(log: Path, size: int | None = None) -> Iterable[str]:
    """The end of a log, or of its first ``size`` bytes: what came before the traceback."""
    if not log.exists():
        return
    with log.open("rb") as file:
        end = log.stat().st_size if size is None else size
        file.seek(max(0, end - _TAIL_BYTES))
        text = file.read(end - file.tell()).decode("utf-8", errors="replace")
    if last := [line for line in text.splitlines() if line.strip()][-_TAIL:]:
        yield f"last lines of {log}:"
        yield from (f"  | {line}" for line in last)
    else:
        yield f"log of this rank: {log}"


def signal_name(number: int) -> str:
    """``SIGKILL``; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
