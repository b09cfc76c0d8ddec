"""A toy engine, written to disk in several versions, and patches for it."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from primus_core.patches.fingerprint import fingerprint
from primus_core.patches.registry import Registry
from primus_core.plugins.records import Backend, Patch

LOSS = {
    "1.0": '''
        def cross_entropy(logits, target):
            """Loss of a batch."""
            return sum(logits) - target  # nats

        SCALE = 1
    ''',
    "1.1": '''
        SCALE = 1

        def cross_entropy(
            logits,
            target,
        ):
            """Loss of a batch, in nats."""
            # the same as before
            return sum(logits) - target
    ''',
    "1.2": """
        SCALE = 2.0

        def cross_entropy(logits, target):
            return max(logits) - target
    """,
    "1.3": """
        def cross_entropy(logits, target, reduction="sum"):
            return sum(logits) - target
    """,
    "2.0": """
        def cross_entropy_loss(logits, target):
            return sum(logits) - target
    """,
}

MODEL = """
    from toy.loss import *

    class Base:
        def describe(self):
            return "base"

    class Model(Base):
        name = "toy"

        def __init__(self, width):
            self.width = width

        def forward(self, x):
            return x * self.width

        @staticmethod
        def double(x):
            return 2 * x

        @classmethod
        def make(cls, width=3):
            return cls(width)

        @property
        def size(self):
            return self.width

    def initialize():
        return "cuda"
"""

TRAIN = """
    from toy.model import initialize

    def pretrain():
        return initialize()
"""

BROKEN = "import toy.model\nraise RuntimeError('no driver')\n"


def write_engine(folder: Path, version: str) -> Path:
    """A distribution ``toy-engine`` with the package ``toy``."""
    package = folder / "toy"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "loss": LOSS[version], "model": MODEL, "train": TRAIN, "broken": BROKEN}.items():
        (package / f"{name}.py").write_text(dedent(text))
    metadata = folder / f"toy_engine-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy-engine\nVersion: {version}\n")
    return folder


def forget_engine() -> None:
    for name in [name for name in sys.modules if name == "toy" or name.startswith("toy.")]:
        del sys.modules[name]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Make one version of the toy engine importable; returns the version."""

    def use(version: str) -> str:
        forget_engine()
        folder = tmp_path / f"engine-{version}"
        monkeypatch.syspath_prepend(folder if folder.exists() else write_engine(folder, version))
        return version

    yield use
    forget_engine()


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    return Backend(
        name="toy",
        summary="a toy",
        engine="toy-engine",
        engine_versions=">=1,<2",
        trainer="toy.train:pretrain",
        schemas=tmp_path,
        presets=tmp_path,
    )


@pytest.fixture
def run() -> Callable[..., SimpleNamespace]:
    """What conditions and replacements see of a run."""

    def make(platform: str = "cpu", stage: str = "pretrain", **config: object) -> SimpleNamespace:
        return SimpleNamespace(platform=platform, stage=stage, config=config)

    return make


@pytest.fixture
def patch() -> Callable[..., Patch]:
    """A patch whose replacement adds ten to what the original returns, unless another one is given."""

    def plus_ten(original):
        return lambda *args: original(*args) + 10

    def make(target: str = "toy.loss:cross_entropy", replacement: object = plus_ten, **fields: object) -> Patch:
        defaults = {"name": "toy.ten", "reason": "ten more", "backend": "toy", "engine_versions": ">=1,<2"}
        return Patch(**(defaults | {"target": target, "replacement": replacement} | fields))

    return make


@pytest.fixture
def registry(backend: Backend) -> Callable[..., Registry]:
    return lambda version, *patches: Registry(backend, patches, version)


@pytest.fixture
def marks(tmp_path: Path, engine: Callable[[str], str]) -> Path:
    """Fingerprints of ``toy.ten`` as recorded with version 1.0."""
    engine("1.0")
    mark = fingerprint(importlib.import_module("toy.loss").cross_entropy)
    file = tmp_path / "fingerprints.json"
    file.write_text(json.dumps({"toy.ten": {"1.0": dataclasses.asdict(mark)}}))
    return file
