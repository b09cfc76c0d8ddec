"""MLflow. ``metrics.mlflow`` takes ``tracking_uri`` (default: ``MLFLOW_TRACKING_URI``) and ``experiment``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from primus_core.run.sinks import configuration, options, scalars

if TYPE_CHECKING:
    from primus_core.run.context import Run

_LONGEST = 500


class MLflow:
    """One run of theirs for one attempt; parameters are the configuration without its secrets."""

    def __init__(self, run: Run, wanted: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(wanted.get("tracking_uri"))
        name = wanted.get("experiment", "primus")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in configuration(run).items()]
        for first in range(0, len(params), 100):  # the server takes a hundred at once
            self._client.log_batch(self._id, params=params[first : first + 100])
        self._status = "KILLED"

    def event(self, event: Mapping[str, Any]) -> None:
        milliseconds = int(event["time"] * 1000)
        if values := scalars(event):
            batch = [self._metric(name, value, milliseconds, event["step"]) for name, value in values.items()]
            self._client.log_batch(self._id, metrics=batch)
        if event["event"] in ("run_finished", "run_failed"):
            self._status = "FINISHED" if event["event"] == "run_finished" else "FAILED"

    def close(self) -> None:
        self._client.set_terminated(self._id, self._status)


def make(run: Run) -> MLflow | None:
    wanted = options(run, "mlflow")
    return None if wanted is None else MLflow(run, wanted)
