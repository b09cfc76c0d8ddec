"""One self-contained HTML page about a run, from the files of its attempts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from primus_core.errors import UserError
from primus_core.run import metrics
from primus_core.run.chart import Series, line_chart

CHARTS = (
    ("Loss", ("loss",)),
    ("Gradient norm", ("grad_norm",)),
    ("Learning rate", ("lr",)),
    ("Tokens per second", ("tokens_per_s",)),
    ("Model FLOPs utilisation", ("mfu",)),
    ("Memory, GiB", ("memory",)),
)

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 1360px; margin: 2rem auto; padding: 0 1rem }
h1 { margin: 0 } h2 { font-size: 1rem; margin: 0 0 .3rem } p.sub { opacity: .7; margin: .2rem 0 1.5rem }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1.5rem }
svg { width: 100%; height: auto } polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round }
svg text { font-size: 11px; fill: currentColor; opacity: .75 } text.y { text-anchor: end; dominant-baseline: middle }
text.x { text-anchor: middle } line.grid { stroke: currentColor; opacity: .12 }
details { margin-top: 1.2rem } summary { cursor: pointer; font-weight: 600 }
pre { overflow: auto; padding: .8rem; border: 1px solid #8884; border-radius: 6px; font-size: 12px }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
"""


def attempts_of(run: Path) -> list[Path]:
    """The attempts below a run's folder, oldest first; an attempt's own folder is one.

    Raises ``UserError`` when there is none.
    """
    found = [run] if (run / "metrics.jsonl").is_file() else sorted((run / "attempts").glob("*/"))
    found = [attempt for attempt in found if (attempt / "metrics.jsonl").is_file()]
    if not found:
        raise UserError(f"{run} is not the folder of a run: it has no attempts/*/metrics.jsonl")
    return found


def render(run: Path) -> str:
    """The page as HTML text."""
    attempts = attempts_of(run)
    events = [(attempt, metrics.read(attempt / "metrics.jsonl")) for attempt in attempts]
    about = _read_json(attempts[-1] / "run.json")
    name = about.get("name") or run.name
    charts = "".join(_charts([event for _, part in events for event in part]))
    rows = "".join(_attempt_row(attempt, part) for attempt, part in events)
    files = "".join(
        _details(title, attempts[-1] / file)
        for title, file in (
            ("Configuration", "config.yaml"),
            ("Patches", "patches.json"),
            ("Versions and environment", "run.json"),
            ("What was executed", "plan.sh"),
        )
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(str(name))}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{escape(str(name))}</h1><p class=sub>{escape(_subtitle(about))}</p>"
        f'<div class="charts">{charts}</div>'
        f"<details open><summary>Attempts</summary><table><tr><th>attempt<th>steps<th>last loss<th>ended</tr>{rows}"
        f"</table></details>{files}</html>\n"
    )


def _charts(events: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for title, names in CHARTS:
        series: dict[str, Series] = {name: _series(events, "step", name) for name in names}
        if names == ("loss",):
            for split in sorted({str(event.get("split")) for event in events if event["event"] == "eval"}):
                of_split = [event for event in events if event.get("split") == split]
                series[split] = _series(of_split, "eval", "loss")
        if any(series.values()):
            yield f"<section><h2>{title}</h2>{line_chart(series)}</section>"


def _series(events: Sequence[Mapping[str, Any]], kind: str, name: str) -> Series:
    """``(step, value)`` of one metric; a step that a later attempt repeated counts as repeated."""
    scale = 2.0**-30 if name == "memory" else 1.0
    points = {
        event["step"]: event[name] * scale
        for event in events
        if event["event"] == kind and isinstance(event.get(name), int | float)
    }
    return sorted(points.items())


def _attempt_row(attempt: Path, events: Sequence[Mapping[str, Any]]) -> str:
    steps = [event for event in events if event["event"] == "step"]
    result = _read_json(attempt / "result.json")
    ended = f"exit code {result['exit_code']}" if "exit_code" in result else "no end recorded"
    span = f"{steps[0]['step']} to {steps[-1]['step']}" if steps else "none"
    loss = steps[-1].get("loss") if steps else None
    cells = (attempt.name, span, "" if loss is None else f"{loss:.4f}", ended)
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _subtitle(about: Mapping[str, Any]) -> str:
    return " · ".join(str(about[key]) for key in ("backend", "stage", "platform", "started") if about.get(key))


def _details(title: str, file: Path) -> str:
    if not file.is_file():
        return ""
    text = escape(file.read_text(encoding="utf-8"))
    return f"<details><summary>{title}</summary><pre>{text}</pre></details>"


def _read_json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
