"""A small backend: schemas, presets and a plugin, written into a temporary folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from primus_core.config.check import check
from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.resolve import resolve
from primus_core.errors import ConfigError, Problem
from primus_core.plugins.manager import PluginManager

KEYS: dict[str, Any] = {
    "num_layers": {"type": "int", "default": None, "group": "network size", "help": "Number of layers."},
    "hidden_size": {"type": "int", "default": 64},
    "lr": {"type": "float", "default": 1e-3},
    "optimizer": {"type": "str", "choices": ["adam", "sgd"], "default": "adam"},
    "train_iters": {"type": "int", "default": 10},
    "bf16": {"type": "bool", "default": False},
    "save": {"type": "str", "default": None},
    "recompute": {"type": "list", "items": "str", "default": None},
    "freq": {"type": ["int", "str", "list"], "default": 1},
    "extra": {"type": "mapping", "default": {}},
    "revision": {"type": "str", "default": "main"},
    "train.micro_batch_size": {"type": "int", "default": 1},
    "train.steps": {"type": "int", "default": 10},
    "train.lr": {"type": "float", "default": 1e-3},
    "api_key": {"type": "str", "default": None},
    "vault": {"type": "str", "default": None, "secret": True},
    "sink_level": {"type": "str", "default": None, "no_effect": "logs are kept per rank"},
    "use_turbo_grouped_gemm": {"type": "bool", "default": False},
    "softcap": {"type": "float", "default": None, "refused": "capped scores are not part of toy-engine"},
}
RENAMED = {
    "use_turbo_grouped_mm": {"to": "use_turbo_grouped_gemm", "since": "1.0", "until": "3.0"},
    "ancient": {"to": "num_layers", "since": "0.5", "until": "1.5"},
}


@dataclass
class Toy:
    """The backend's files, and experiments beside them."""

    folder: Path
    plugins: PluginManager
    environ: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def experiment(self, overrides: str, name: str = "exp.yaml", module: str = "pre_trainer", top: str = "") -> Path:
        """An experiment whose overrides start at line 6 (after ``top``)."""
        body = "".join(f"      {line}\n" for line in dedent(overrides).splitlines())
        head = f"modules:\n  {module}:\n    framework: toy\n    model: small\n    overrides:\n"
        return self.write(name, dedent(top) + head + body)

    def resolve(self, name: str | Path = "exp.yaml", *words: str, stage: Any = None, **options: Any) -> Experiment:
        return resolve(Path(name), stage, words, self.plugins, environ=self.environ, **options)

    def check(self, name: str | Path = "exp.yaml", *words: str, **options: Any) -> tuple[Problem, ...]:
        return check(self.resolve(name, *words, **options), CheckContext(), self.plugins)

    def errors(self, name: str | Path = "exp.yaml", *words: str, **options: Any) -> list[str]:
        """The messages of what is wrong, one per problem."""
        try:
            self.check(name, *words, **options)
        except ConfigError as error:
            return [str(problem) for problem in error.problems]
        return []


PLUGIN = """
from pathlib import Path
from primus_core.plugins import hookimpl
from primus_core.plugins.records import Backend

HERE = Path(__file__).parent

@hookimpl
def primus_backends():
    yield Backend(name="toy", summary="A toy", engine="toy-engine", engine_versions=">=1,<3", trainer="none:none",
                  schemas=HERE / "schemas", presets=HERE / "presets", stages=("pretrain", "posttrain"),
                  capabilities=globals().get("CAPABILITIES"))
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy backend; the working directory is the folder of its experiments."""
    return make(tmp_path, monkeypatch)


@pytest.fixture
def make_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Toy]:
    """As ``toy``, with more code in its plugin."""
    return lambda code="": make(tmp_path, monkeypatch, code)


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str = "") -> Toy:
    schemas = folder / "plugin" / "schemas"
    schemas.mkdir(parents=True)
    for version, keys in versions():
        content = {"engine": "toy-engine", "version": version, "keys": keys, "renamed": RENAMED}
        (schemas / f"toy-engine-{version}.json").write_text(json.dumps(content))
    own = {"engine": "primus-toy", "version": "0.1", "keys": {"show_curve": {"type": "bool", "default": True}}}
    (schemas / "keys.json").write_text(json.dumps(own))
    others = ",".join(entry.name for entry in metadata.entry_points(group="primus"))
    plugin = folder / "plugin" / "toy.py"
    plugin.write_text(PLUGIN + dedent(code))
    monkeypatch.setattr("primus_core.config.schema.installed_version", lambda distribution: "2.0")
    toy = Toy(folder, PluginManager.load(plugin, {"PRIMUS_DISABLE_PLUGINS": others}))
    toy.write("plugin/presets/modules/pre_trainer.yaml", "lr: 0.1\ntrain_iters: 5\nnum_layers: 1\nsave: null\n")
    toy.write("plugin/presets/models/base.yaml", "num_layers: 2\nhidden_size: 32\n")
    toy.write("plugin/presets/models/small.yaml", "extends: base.yaml\nnum_layers: 4\n")
    monkeypatch.chdir(folder)
    return toy


def versions() -> Iterable[tuple[str, dict[str, Any]]]:
    yield "1.0", {**KEYS, "legacy_norm": {"type": "bool", "default": False}}
    yield "2.0", KEYS
    yield "2.5", {**KEYS, "enable_liger_kernel": {"type": "bool", "default": False}}
