"""The run that a backend's ``train(run)`` gets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.run import metrics as events
from primus_core.run.recovery import Recovery
from primus_core.run.signals import Stop

if TYPE_CHECKING:
    from primus_core.patches.registry import Registry
    from primus_core.plugins.manager import PluginManager
    from primus_core.plugins.records import Backend, Device, Phase
    from primus_core.run.context import Place
    from primus_core.run.heartbeat import Heartbeat
    from primus_core.run.job import Job
    from primus_core.run.sinks import Sink


class ActiveRun:
    """See ``primus_core.run.context.Run``; sinks are given on the reporting rank only."""

    def __init__(
        self,
        job: Job,
        *,
        attempt: Path,
        backend: Backend,
        place: Place,
        platform: str,
        devices: tuple[Device, ...],
        plugins: PluginManager,
        patches: Registry,
        heartbeat: Heartbeat,
        stop: Stop | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self.name = job.name
        self.stage = job.stage
        self.model = job.model
        self.config: Mapping[str, Any] = job.config
        self.secret_keys = frozenset(
            path.removeprefix("config/").replace("/", ".") for path in job.secrets if path.startswith("config/")
        )
        self.metrics: Mapping[str, Any] = job.metrics
        self.platform = platform
        self.folder = Path(job.folder)
        self.attempt = attempt
        self.backend = backend
        self.place = place
        self.devices = devices
        self.steps: int | None = None
        self._plugins = plugins
        self._patches = patches
        self._heartbeat = heartbeat
        self._sinks: list[tuple[str, Sink]] = []
        self._began = time.monotonic()
        self._stop = stop
        self.recovery = recovery or Recovery()

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def is_reporter(self) -> bool:
        return self.rank == (0 if self.backend.reporter == "first" else self.place.world_size - 1)

    @property
    def seconds(self) -> float:
        """Since this worker was set up."""
        return time.monotonic() - self._began

    @property
    def stop_requested(self) -> bool:
        if not self._heartbeat.stops:
            self._heartbeat.can_stop()
        return self._stop is not None and self._stop.requested

    def apply_patches(self, phase: Phase) -> None:
        try:
            self._patches.apply(phase, self)
        finally:
            if self.rank == 0:
                text = json.dumps(self._patches.record(), indent=1) + "\n"
                (self.attempt / "patches.json").write_text(text, encoding="utf-8")

    def enter(self, phase: str, step: int | None = None) -> None:
        self._heartbeat.beat(phase, step)

    def expect(self, steps: int, start: int = 0) -> None:
        self.steps = steps
        self._send("expect", {"step": start, "steps": steps})

    def report_step(self, step: int, metrics: Mapping[str, float | int | None]) -> None:
        self._heartbeat.beat(step=step)
        if self.is_reporter:
            self._send("step", {"step": step} | dict(metrics))
            self._plugins.notify("primus_step_finished", run=self, step=step, metrics=metrics)
            if (loss := metrics.get("loss")) is not None and (wrong := self.recovery.check(step, loss)):
                self.note(f"step {step}: {wrong}")

    def report_eval(self, step: int, metrics: Mapping[str, float | int | None], split: str = "valid") -> None:
        self._send("eval", {"step": step, "split": split} | dict(metrics))

    def checkpoint_saved(self, step: int, path: Path) -> None:
        if self.is_reporter:
            self._send("checkpoint", {"step": step, "path": str(path)})
            self._plugins.notify("primus_checkpoint_saved", run=self, step=step, path=path)

    def note(self, message: str) -> None:
        self._send("note", {"message": message})

    def model_built(self, model: Any) -> None:
        self._plugins.hook.primus_model_built(run=self, model=model)

    def builder(self, model: str) -> Callable[..., Any] | None:
        found = self._plugins.models().get((self.backend.name, model))
        if found is None or found.record.builder is None:
            return None
        builder: Callable[..., Any] = found.load(found.record.builder)
        return builder

    def start(self, sinks: Sequence[tuple[str, Sink]]) -> None:
        """Send events to these sinks from now on, and tell plugins that the run starts."""
        self._sinks = list(sinks)
        about = {"name": self.name, "backend": self.backend.name, "platform": self.platform}
        self._send("run_started", about | {"ranks": self.place.world_size})
        self._plugins.notify("primus_run_started", run=self)

    def finish(self, error: BaseException | None = None, message: str = "") -> None:
        """Tell sinks (``message``, without secrets) and plugins how it ended, and let go of the sinks."""
        if error is None:
            self._heartbeat.beat("finished")
            self._send("run_finished", {"seconds": round(self.seconds, 3)})
            self._plugins.notify("primus_run_finished", run=self)
        else:
            self._send("run_failed", {"seconds": round(self.seconds, 3), "error": message})
            self._plugins.notify("primus_run_failed", run=self, error=error)
        for name, sink in self._sinks:
            self._guarded(name, sink.close)
        self._sinks = []

    def _send(self, kind: str, fields: Mapping[str, Any]) -> None:
        if not (self.is_reporter and self._sinks):
            return
        event = events.make(kind, fields)
        for name, sink in tuple(self._sinks):
            self._guarded(name, partial(sink.event, event))

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        """A sink that breaks is named and dropped; training goes on."""
        try:
            call()
        except Exception as error:
            self._sinks = [entry for entry in self._sinks if entry[0] != name]
            self.note(f"metric sink {name} stopped: {type(error).__name__}: {error}")
