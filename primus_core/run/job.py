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
    config: dict[str, Any]
    metrics: dict[str, Any]
    folder: str
    primusfile: str | None = None

    @classmethod
    def of(cls, experiment: Experiment, primusfile: Path | None = None) -> tuple[Job, dict[str, Any]]:
        """The job with its secrets masked, and these by path: ``{"config/api_key": "..."}``."""
        sections = {"config": experiment.config, "metrics": experiment.metrics}
        plain = {name: tree.plain() for name, tree in sections.items()}
        secrets: dict[str, Any] = {}
        for section, tree in sections.items():
            for path, leaf in tree.leaves():
                dotted = ".".join(path if section == "config" else (section, *path))
                if leaf.value is not None and (dotted in experiment.secrets or is_secret_key(path[-1])):
                    secrets["/".join((section, *path))] = leaf.value
                    _set(plain, (section, *path), MASK)
        return cls(
            name=experiment.exp_name,
            stage=experiment.stage,
            backend=experiment.backend,
            model=experiment.model,
            config=plain["config"],
            metrics=plain["metrics"],
            folder=str(experiment.folder.absolute()),
            primusfile=str(primusfile.absolute()) if primusfile else None,
        ), secrets

    def text(self) -> str:
        """What stands in the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def read(attempt: Path) -> Job:
    """The job of an attempt's folder, with its secrets taken from the environment.

    Raises ``EnvironmentFault`` when one is not there.
    """
    data = json.loads((attempt / FILE).read_text(encoding="utf-8"))
    for path, value in secrets().items():
        _set(data, tuple(path.split("/")), value)
    if masked := [path for path in _masked(data) if path not in secrets()]:
        raise EnvironmentFault(f"{attempt / FILE}: {', '.join(masked)} is masked, and {SECRETS} does not hold it")
    return Job(**data)


def secrets() -> dict[str, Any]:
    """The configuration's secrets that the environment carries."""
    found: dict[str, Any] = json.loads(os.environ.get(SECRETS, "{}"))
    return found


def _set(node: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value


def _masked(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _masked(value, f"{prefix}{name}/")
        elif value == MASK:
            yield prefix + name
