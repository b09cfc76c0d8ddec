from __future__ import annotations

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, Origin
from primus_core.plugins.manager import PluginManager
from primus_core.run import metrics, sinks
from primus_core.run.sinks import mlflow, tensorboard, wandb
from primus_core.run.sinks.console import Console, Curve, clock, quantity, sparkline

HERE = Origin("x.yaml", 1, 1)
EVENTS = [
    metrics.make("run_started", {"name": "toy"}),
    metrics.make("expect", {"step": 0, "steps": 20}),
    metrics.make("step", {"step": 10, "loss": 6.21154, "grad_norm": 8.263, "lr": 1e-4, "tokens_per_s": 412.4}),
    metrics.make("step", {"step": 20, "loss": float("nan"), "mfu": 0.412, "step_time": 0.31, "tokens_per_s": 123456}),
    metrics.make("eval", {"step": 20, "split": "valid", "loss": 5.5}),
    metrics.make("checkpoint", {"step": 20, "path": "/c/20"}),
    metrics.make("note", {"message": "by the way"}),
    metrics.make("run_finished", {"seconds": 65}),
]


def run(folder: Path, **options: Any) -> Any:
    section = {"sinks": list(options), **options}
    config = {"lr": 1e-4, "tracker": {"api_key": "sekret-of-config"}, "phrase": "sekret-too"}
    secret_keys = frozenset({"phrase"})
    return SimpleNamespace(name="toy", attempt=folder, metrics=section, config=config, secret_keys=secret_keys)


def feed(sink: Any) -> None:
    for event in EVENTS:
        sink.event(event)
    sink.close()


def test_console_says_it_in_plain_lines(tmp_path):
    out = io.StringIO()
    feed(Console(out, tmp_path))
    assert out.getvalue().splitlines() == [
        "step 10/20  loss 6.2115  grad 8.26  lr 1.00e-04  412 tok/s",
        "step 20/20  loss nan  123k tok/s  mfu 41.2%  0.31 s/step  eta 0:00",
        "valid at step 20  loss 5.5000",
        "checkpoint at step 20: /c/20",
        "by the way",
        "done after 1:05, step 20, valid loss 5.5000",
        f"run folder: {tmp_path}",
    ]


def test_jsonl_is_valid_json_whatever_the_numbers(tmp_path):
    file = metrics.JsonLines(tmp_path / "m.jsonl")
    feed(file)
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    bad = json.loads(lines[3], parse_constant=pytest.fail)
    assert bad["loss"] is None
    assert bad["nonfinite"] == {"loss": "nan"}
    with (tmp_path / "m.jsonl").open("a") as more:
        more.write('{"event": "st')
    assert len(metrics.read(tmp_path / "m.jsonl")) == len(EVENTS)


def test_scalars_of_arrays_become_numbers():
    numpy = pytest.importorskip("numpy")
    assert metrics.make("step", {"loss": numpy.float32(1.5), "step": numpy.int64(3)})["loss"] == 1.5


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = tensorboard.make(run(tmp_path, tensorboard={}))
    feed(sink)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("valid/loss")] == [(20, 5.5)]
    assert [each.step for each in events.Scalars("train/loss")] == [10]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    sink = wandb.make(run(tmp_path, wandb={"project": "p", "mode": "offline"}))
    feed(sink)
    (record,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    limit = time.monotonic() + 20  # their own process writes it
    while b"valid/loss" not in (written := record.read_bytes()) and time.monotonic() < limit:
        time.sleep(0.1)
    assert b"train/loss" in written
    assert b"valid/loss" in written
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"sekret" in path.read_bytes()]


def test_mlflow_in_a_file(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    feed(mlflow.make(run(tmp_path, mlflow={"tracking_uri": uri, "experiment": "e"})))
    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.metrics["valid/loss"] == 5.5
    assert found.data.params == {"lr": "0.0001", "tracker.api_key": "***", "phrase": "***"}


@pytest.mark.parametrize("module", [tensorboard, wandb, mlflow])
def test_sinks_that_nobody_asked_for_are_not_opened(module, tmp_path):
    assert module.make(run(tmp_path)) is None


def section(**items: Any) -> Tree:
    return Tree(HERE, {name: Leaf(value, HERE, HERE) for name, value in items.items()})


def test_section_is_checked():
    plugins = PluginManager.load(environ={})
    said: list[str] = []
    with pytest.raises(ConfigError) as caught:
        sinks.check(section(sinks=["wandbb"], tensorbord={}), plugins, said.append)
    assert "unknown metric sink 'wandbb'; did you mean 'wandb'?" in str(caught.value)
    assert "unknown key metrics.tensorbord; did you mean 'tensorboard'?" in str(caught.value)
    sinks.check(section(sinks=["tensorboard"], wandb={}), plugins, said.append)
    assert said == ["x.yaml:1:1: metrics.wandb has no effect without wandb in metrics.sinks"]


def test_figures():
    assert [clock(seconds) for seconds in (0, 28, 3723, 190000)] == ["0:00", "0:28", "1:02:03", "2d 04:46:40"]
    assert [quantity(number) for number in (0.5, 412.4, 9999, 12345, 1.05e6, 3e9)] == [
        "0.5",
        "412",
        "9999",
        "12.3k",
        "1.05M",
        "3G",
    ]
    assert sparkline([1.0, 2.0, 3.0], 40) == "▁▅█"
    assert len(sparkline([float(n) for n in range(1000)], 40)) == 40
    assert sparkline([1.0, 1.0], 40) == "▁▁"
    assert sparkline([1.0, 2.0], 40, "ascii") == "->"


def test_long_curves_are_kept_short():
    curve = Curve()
    for number in range(100_000):
        curve.add(float(number))
    assert (curve.first, curve.last) == (0.0, 99_999.0)
    assert 1024 <= len(curve.means) < 2048
    assert curve.means == sorted(curve.means)
    assert curve.means[0] == 31.5
