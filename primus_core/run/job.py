"""``worker.json``: what the CLI process tells every worker, plain data."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_core.errors import EnvironmentFault
from primus_core.secrets import MASK

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.plugins.records import Stage

FILE = "worker.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The experiment as a worker needs it.

    Secrets travel by the environment, never in the file: ``secrets`` maps the path of each, ``config/api_key``, to
    the variable that holds it.
    """

    name: str
    stage: Stage
    backend: str
    model: str | None
    config: dict[str, Any]
    metrics: dict[str, Any]
    folder: str
    primusfile: str | None = None
    secrets: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment, primusfile: Path | None = None) -> tuple[Job, dict[str, str]]:
        """The job with its secrets masked, and these by the name of their variable."""
        from primus_core.config.render import secret_variable

        sections = {"config": experiment.config, "metrics": experiment.metrics}
        plain = {name: tree.plain() for name, tree in sections.items()}
        variables: dict[str, str] = {}
        values: dict[str, str] = {}
        for section, tree in sections.items():
            for path, leaf in tree.leaves():
                name = ".".join(path if section == "config" else (section, *path))
                if name in experiment.secrets:
                    variable = secret_variable(name)
                    variables["/".join((section, *path))] = variable
                    values[variable] = leaf.value if isinstance(leaf.value, str) else json.dumps(leaf.value)
                    _set(plain, (section, *path), MASK if isinstance(leaf.value, str) else [MASK])
        return cls(
            name=experiment.exp_name,
            stage=experiment.stage,
            backend=experiment.backend,
            model=experiment.model,
            config=plain["config"],
            metrics=plain["metrics"],
            folder=str(experiment.folder.absolute()),
            primusfile=str(primusfile.absolute()) if primusfile else None,
            secrets=variables,
        ), values

    def text(self) -> str:
        """What stands in the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def secret_values(self) -> set[str]:
        """The secrets that the environment holds for this job."""
        return {os.environ[variable] for variable in self.secrets.values() if variable in os.environ}


def read(attempt: Path) -> Job:
    """The job of an attempt's folder, with its secrets taken from the environment.

    Raises ``EnvironmentFault`` when one is not there.
    """
    data = json.loads((attempt / FILE).read_text(encoding="utf-8"))
    if missing := sorted({variable for variable in data["secrets"].values() if variable not in os.environ}):
        raise EnvironmentFault(f"the values of masked keys are missing: set {', '.join(missing)}")
    for path, variable in data["secrets"].items():
        *parents, last = path.split("/")
        node = reduce(getitem, parents, data)
        text = os.environ[variable]
        node[last] = text if node[last] == MASK else json.loads(text)
    return Job(**data)


def _set(node: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    reduce(getitem, path[:-1], node)[path[-1]] = value
