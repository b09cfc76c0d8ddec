"""Places that metrics go to: JSON lines and the console always, others when the experiment asks for them::

metrics:
  sinks: [tensorboard, wandb]
  wandb: {project: small-models}
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, EnvironmentFault, Problem
from primus_core.plugins.manager import did_you_mean
from primus_core.run.metrics import JsonLines
from primus_core.secrets import MASK, is_secret_key

if TYPE_CHECKING:
    from primus_core.plugins.manager import PluginManager
    from primus_core.plugins.records import MetricSink
    from primus_core.run.context import Run

type Event = Mapping[str, Any]

ALWAYS = ("console",)


class Sink(Protocol):
    """Receives every event of a run, as it stands in ``metrics.jsonl``, on the reporting rank."""

    def event(self, event: Event) -> None:
        """Take one event; ``event["event"]`` says which kind."""
        ...

    def close(self) -> None:
        """Flush and let go; called once, also after a failure."""
        ...


def options(run: Run, name: str) -> Mapping[str, Any] | None:
    """The options of a sink in the experiment's ``metrics`` section; None where it is not asked for."""
    if name not in (run.metrics.get("sinks") or ()):
        return None
    return run.metrics.get(name) or {}


def scalars(event: Event) -> dict[str, float]:
    """The finite numbers of a step or an evaluation, as ``train/loss`` or ``valid/loss``."""
    kind = event["event"]
    if kind not in ("step", "eval"):
        return {}
    prefix = "train" if kind == "step" else event["split"]
    return {
        f"{prefix}/{name}": value
        for name, value in event.items()
        if name not in ("time", "step") and isinstance(value, int | float)
    }


def configuration(run: Run) -> dict[str, Any]:
    """The run's parameters by dotted key, secrets masked, for trackers."""
    flat: dict[str, Any] = {}

    def walk(node: Mapping[str, Any], prefix: str) -> None:
        for name, value in node.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{name}.")
            else:
                key = prefix + name
                flat[key] = MASK if value is not None and (key in run.secret_keys or is_secret_key(key)) else value

    walk(run.config, "")
    return flat


def open_all(run: Run, plugins: PluginManager, console: TextIO) -> list[tuple[str, Sink]]:
    """The sinks of this rank: none but on the reporting one."""
    if not run.is_reporter:
        return []
    from primus_core.run.sinks.console import Console

    opened: list[tuple[str, Sink]] = [
        ("metrics.jsonl", JsonLines(run.attempt / "metrics.jsonl")),
        ("console", Console.on(console, run)),
    ]
    for name, contribution in plugins.named("primus_metric_sinks").items():
        if name not in ALWAYS and (sink := contribution.load(contribution.record.factory)(run)) is not None:
            opened.append((name, sink))
    return opened


def check(section: Tree, plugins: PluginManager, say: Callable[[str], None]) -> None:
    """Raise ``ConfigError`` with all that is wrong with an experiment's ``metrics`` section; ``say`` gets notices."""
    found = tuple(_problems(section, plugins))
    if errors := [problem for problem in found if problem.severity == "error"]:
        raise ConfigError(errors)
    for notice in found:
        say(str(notice))


def _problems(section: Tree, plugins: PluginManager) -> Iterator[Problem]:
    known = set(plugins.named("primus_metric_sinks"))
    wanted = section.items.get("sinks")
    if wanted is not None and not (isinstance(wanted, Leaf) and isinstance(wanted.value, list)):
        yield Problem(wanted.origin, "metrics.sinks must be a list, such as [tensorboard]")
        return
    names = wanted.value if isinstance(wanted, Leaf) else []
    for name in names:
        if isinstance(wanted, Leaf) and name not in known:
            hint = did_you_mean(str(name), known)
            yield Problem(wanted.origin, f"unknown metric sink {name!r}{hint}; installed: {', '.join(sorted(known))}")
    for name, node in section.items.items():
        place = node.key if isinstance(node, Leaf) else node.origin
        if name == "sinks" or name in names:
            continue
        if name in known:
            yield Problem(place, f"metrics.{name} has no effect without {name} in metrics.sinks", "notice")
        else:
            yield Problem(place, f"unknown key metrics.{name}{did_you_mean(name, {'sinks', *known})}")


def require(section: Tree, plugins: PluginManager) -> None:
    """Raise ``EnvironmentFault`` if a sink is asked for whose package is not installed."""
    wanted = section.plain().get("sinks") or ()
    for name, contribution in plugins.named("primus_metric_sinks").items():
        record: MetricSink = contribution.record
        missing = [module for module in record.requires if importlib.util.find_spec(module) is None]
        if name in wanted and missing:
            raise EnvironmentFault(f"metric sink {name} needs {', '.join(missing)}; {record.install}")
