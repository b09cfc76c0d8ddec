from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from primus_core.patches.registry import Registry
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend
from primus_core.run import metrics
from primus_core.run.active import ActiveRun
from primus_core.run.context import Place
from primus_core.run.heartbeat import Heartbeat, read_all
from primus_core.run.job import Job


class Kept:
    """A sink that keeps events, until one of the kind that it cannot stand."""

    def __init__(self, breaks_at: str = "") -> None:
        self.events: list[dict[str, Any]] = []
        self.breaks_at, self.closed = breaks_at, 0

    def event(self, event: Any) -> None:
        if event["event"] == self.breaks_at:
            raise ConnectionError("gone")
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    @property
    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events]


def make(folder: Path, rank: int = 0, reporter: Any = "first") -> ActiveRun:
    backend = Backend(
        name="toy",
        summary="",
        engine="toy",
        engine_versions="",
        trainer="x:y",
        schemas=folder,
        presets=folder,
        reporter=reporter,
    )
    return ActiveRun(
        Job(name="n", stage="pretrain", backend="toy", model=None, config={}, metrics={}, folder=str(folder)),
        attempt=folder,
        backend=backend,
        place=Place(rank=rank, local_rank=rank, world_size=2, local_world_size=2),
        platform="cpu",
        devices=(),
        plugins=PluginManager.load(environ={}),
        patches=Registry(backend, (), None),
        heartbeat=Heartbeat(folder / "ranks", rank, 2),
    )


def test_sink_that_breaks_is_named_and_dropped(tmp_path):
    good, bad = Kept(), Kept(breaks_at="step")
    run = make(tmp_path)
    run.start([("bad", bad), ("good", good)])
    run.report_step(1, {"loss": 2.0})
    run.report_step(2, {"loss": 1.0})
    run.finish()
    assert good.kinds == ["run_started", "note", "step", "step", "run_finished"]
    assert good.events[1]["message"] == "metric sink bad stopped: ConnectionError: gone"
    assert bad.kinds == ["run_started"]
    assert (good.closed, bad.closed) == (1, 0)


@pytest.mark.parametrize(("rank", "reporter", "told"), [(0, "first", True), (1, "first", False), (1, "last", True)])
def test_reporting_rank(tmp_path, rank, reporter, told):
    run, sink = make(tmp_path, rank, reporter), Kept()
    run.start([("kept", sink)])
    run.report_step(3, {"loss": 1.0})
    assert run.is_reporter == told
    assert bool(sink.events) == told
    assert read_all(tmp_path / "ranks")[rank]["step"] == 3


def test_numbers_that_are_none(tmp_path):
    run, sink = make(tmp_path), Kept()
    run.start([("kept", sink)])
    run.report_step(1, {"loss": float("inf"), "mfu": None})
    assert sink.events[-1]["loss"] is None
    assert sink.events[-1]["nonfinite"] == {"loss": "inf"}
    assert sink.events[-1]["mfu"] is None
    assert metrics.EVENTS[0] == "run_started"
