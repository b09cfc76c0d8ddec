"""``worker.json``: what the CLI process tells every worker, plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.errors import EnvironmentFault
from primus_core.secrets import MASK, is_secret_key

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.records import Stage

SECRETS = "PRIMUS_SECRETS"
FILE = "worker.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The experiment as a worker needs it. Secrets travel by the environment, never in the file."""

    name: str
    stage: Stage
    backend: str
    model: str | None
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    folder: str
    platform: str
    primusfile: str | None = None

    @classmethod
    def of(cls, experiment: Experiment, platform: str, primusfile: Path | None = None) -> Job:
        return cls(
            name=experiment.exp_name,
            stage=experiment.stage,
            backend=experiment.backend,
            model=experiment.model,
            config=experiment.config.plain(),
            metrics=experiment.metrics.plain(),
            folder=str(experiment.folder.absolute()),
            platform=platform,
            primusfile=str(primusfile.absolute()) if primusfile else None,
        )

    def text(self) -> str:
        """The file's text, with secrets masked."""
        return json.dumps(_split(asdict(self))[0], indent=1, ensure_ascii=False) + "\n"

    def secrets(self) -> dict[str, Any]:
        """What ``text`` masks, nested as it stands there: the content of the variable ``PRIMUS_SECRETS``."""
        return _split(asdict(self))[1]


def read(attempt: Path) -> Job:
    """The job of an attempt's folder, with its secrets taken from the environment.

    Raises ``EnvironmentFault`` when one is not there.
    """
    data = json.loads((attempt / FILE).read_text(encoding="utf-8"))
    _overlay(data, json.loads(os.environ.get(SECRETS, "{}")))
    if MASK in _leaves(_split(data)[1]):
        raise EnvironmentFault(f"{attempt / FILE} has masked values, and {SECRETS} does not hold them")
    return Job(**data)


def _split(node: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The node with its secrets masked, and its secrets alone."""
    public: dict[str, Any] = {}
    secret: dict[str, Any] = {}
    for name, value in node.items():
        public[name] = value
        if isinstance(value, Mapping):
            public[name], inner = _split(value)
            if inner:
                secret[name] = inner
        elif isinstance(value, str) and is_secret_key(name):
            public[name], secret[name] = MASK, value
    return public, secret


def _overlay(node: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _overlay(node[name], value)
        else:
            node[name] = value


def secret_texts() -> Iterator[str]:
    """The configuration's secrets that the environment carries."""
    return _leaves(json.loads(os.environ.get(SECRETS, "{}")))


def _leaves(node: Mapping[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield value
