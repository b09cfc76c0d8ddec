"""One self-contained HTML page about a run, or about several side by side, from the files of their attempts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from primus_core.run import chart, page
from primus_core.run.attempts import Attempt, named
from primus_core.run.chart import Line, Mark
from primus_core.run.compare import Facts, Side, differences, figures
from primus_core.run.difference import Difference
from primus_core.run.history import History

_SCALE = {"memory": 2.0**-30, "mfu": 100.0}
_CHARTS = (
    ("Loss", "loss"),
    ("Gradient norm", "grad_norm"),
    ("Learning rate", "lr"),
    ("Tokens per second", "tokens_per_s"),
    ("Model FLOPs utilisation, %", "mfu"),
    ("Memory, GiB", "memory"),
)
_FRAME = (chart.WIDTH, chart.HEIGHT, chart.LEFT, chart.RIGHT, chart.TOP, chart.BOTTOM)
_OWN = ("experiment", "command line")


def render(run: Path) -> str:
    """The page about an experiment's folder, or about one attempt. Raises ``UserError`` for what is neither."""
    history = History(named(run))
    latest = history.latest
    name, status = str(latest.about.get("name") or run.absolute().name), latest.status()
    body = [
        f'<h1>{escape(name)} <small class="{status.state}">{escape(str(status))}</small></h1>',
        f'<p class="sub">{escape(_subtitle(latest))}</p>',
        page.tiles((title, cells[0]) for title, cells in figures([Side("", history)]) if title not in _ABOVE),
        *map(_failure, history.attempts[-1:]),
        f'<div class="charts">{"".join(_charts([("", history)]))}</div>',
        page.section("Attempts", _attempts(history.attempts), opened=len(history.attempts) > 1),
        page.section("Configuration", _configuration(latest), f"{len(latest.origins)} values"),
        page.section("Patches", _patches(latest.patches), _counts(latest.patches)),
        page.section("Data", _data(latest.about.get("data", {}))),
        page.section("Environment", _pairs("environment", latest.about.get("environment", {}))),
        page.section("Versions", _pairs("versions", latest.about.get("versions", {}))),
        page.section("Code", _code(latest), str(latest.about.get("git_commit") or "")[:12]),
        page.section("What was executed", page.pre(_text(latest.folder / "plan.sh"))),
    ]
    return page.document(name, "".join(body), _FRAME)


def compare(sides: Sequence[Side]) -> str:
    """The page about several runs: their curves over one another, results, and what differs."""
    title = " · ".join(side.label for side in sides)
    labels = [side.label for side in sides]
    results = [("", [escape(name), *map(escape, cells)]) for name, cells in figures(sides)]
    body = [
        f"<h1>{escape(title)}</h1><p class='sub'>{len(sides)} runs side by side</p>",
        f'<div class="charts">{"".join(_charts([(side.label, side.history) for side in sides]))}</div>',
        page.section("Results", page.table(["", *labels], results), opened=True),
        *(
            page.section(section.capitalize(), _differences(section, labels, rows), f"{len(rows)} differ", opened=True)
            for section, rows in differences([Facts.of(side.history.latest) for side in sides]).items()
            if rows
        ),
    ]
    return page.document(title, "".join(body), _FRAME)


_ABOVE = ("backend", "model", "state")


def _charts(runs: Sequence[tuple[str, History]]) -> Iterator[str]:
    for title, name in _CHARTS:
        lines = [line for number, (label, history) in enumerate(runs) for line in _lines(label, history, name, number)]
        if any(line.points for line in lines):
            marks = list(_marks(runs[0][1], name)) if len(runs) == 1 else []
            yield f"<section><h2>{escape(title)}</h2>{chart.line_chart(lines, marks, title)}</section>"
    for label, history in runs:
        if values := history.values("step_time"):
            title = " · ".join(filter(None, ("Step time, s", label)))
            yield f"<section><h2>{escape(title)}</h2>{chart.histogram(values, title, ' s')}</section>"


def _lines(label: str, history: History, name: str, number: int) -> Iterator[Line]:
    """Of one run: training, what a later start took back, and for the loss evaluations too."""
    single = not label
    yield Line(label or ("train" if name == "loss" else name), _scaled(name, history.curve(name)), number)
    for piece in history.repeated(name):
        yield Line("repeated later", _scaled(name, piece), number, faint=True)
    if name == "loss":
        for index, split in enumerate(history.splits, 1):
            colour = index if single else number
            yield Line(" ".join(filter(None, (label, split))), history.curve(name, split), colour, dashed=not single)
            for piece in history.repeated(name, split) if single else ():
                yield Line("repeated later", piece, colour, faint=True)


def _scaled(name: str, points: chart.Series) -> chart.Series:
    factor = _SCALE.get(name, 1.0)
    return [(step, value * factor) for step, value in points]


def _marks(history: History, name: str) -> Iterator[Mark]:
    several = len(history.attempts) > 1
    for step, attempt in history.restarts:
        yield Mark(step, f"attempt {attempt.lstrip('0')}" if several else "restart")
    for step, value in history.nonfinite(name):
        yield Mark(step, value, bad=True)


def _failure(attempt: Attempt) -> str:
    """What the run died of, with the tracebacks of the ranks."""
    cause = attempt.result.get("root_cause")
    if not cause:
        return ""
    first, _, rest = str(cause).partition("\n")
    traces = "".join(
        page.section(f"Rank {rank}", page.pre(str(error["traceback"])), str(error["error"]).partition("\n")[0][:120])
        for rank, error in attempt.errors.items()
    )
    return f'<div class="failure"><h2>{escape(first)}</h2>{page.pre(rest)}</div>{traces}'


def _attempts(attempts: Iterable[Attempt]) -> str:
    head = ("attempt", "started", "steps", "last loss", "checkpoints", "ended")
    return page.table(head, [("", list(map(escape, _attempt(attempt)))) for attempt in attempts])


def _attempt(attempt: Attempt) -> Iterator[str]:
    steps, loss = attempt.steps, attempt.last("loss")
    yield attempt.folder.name
    yield str(attempt.about.get("started") or "").replace("T", " ")
    yield f"{steps[0]['step']} to {steps[-1]['step']}" if steps else "none"
    yield "" if loss is None else f"{loss:.4f}"
    yield ", ".join(str(event["step"]) for event in attempt.events if event["event"] == "checkpoint")
    cause = str(attempt.result.get("root_cause") or "").partition("\n")[0]
    yield f"{attempt.status()}{f' · {cause}' if cause else ''}"


def _configuration(attempt: Attempt) -> str:
    rows = [(_kind(entry), _setting(name, entry)) for name, entry in attempt.origins.items()]
    head = ("key", "value", "from", "layer", "replaced")
    return page.table(head, rows, "configuration", own="only what you set") if rows else ""


def _kind(entry: Mapping[str, Any]) -> str:
    return "own" if entry["layer"] in _OWN else ""


def _setting(name: str, entry: Mapping[str, Any]) -> list[str]:
    replaced = "".join(
        f"<i>{page.code(_value(old['value']))} {escape(old['origin'])}</i>" for old in entry.get("replaced", ())
    )
    written = f"<i>{escape(str(entry['written']))}</i>" if "written" in entry else ""
    value = page.code(_value(entry["value"])) + written
    return [page.code(name), value, escape(entry["origin"]), escape(entry["layer"]), replaced]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _patches(record: Sequence[Mapping[str, Any]]) -> str:
    head = ("patch", "", "because", "what for", "target")
    rows = [
        (each["status"], [page.code(each["name"]), *(escape(str(each.get(name) or "")) for name in _PATCH)])
        for each in record
    ]
    return page.table(head, rows, "patches") if rows else ""


_PATCH = ("status", "because", "reason", "target")


def _counts(record: Sequence[Mapping[str, Any]]) -> str:
    statuses = [str(each["status"]) for each in record]
    return ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))


def _data(data: Mapping[str, Mapping[str, str]]) -> str:
    rows = [("", [page.code(path), page.code(e["key"]), escape(e["fingerprint"])]) for path, e in data.items()]
    return page.table(("file", "named by", "content"), rows) if rows else ""


def _pairs(name: str, values: Mapping[str, Any]) -> str:
    rows = [("", [page.code(key), page.code(value)]) for key, value in values.items()]
    return page.table(("name", "value"), rows, name) if rows else ""


def _code(attempt: Attempt) -> str:
    commit = attempt.about.get("git_commit")
    if not commit:
        return ""
    changes = page.pre(attempt.diff) or "<p>Nothing was uncommitted.</p>"
    return f"<p>Commit {page.code(commit)}; uncommitted changes:</p>{changes}"


def _differences(section: str, labels: Sequence[str], rows: Sequence[Difference]) -> str:
    shown = [("", [page.code(r.name), *(page.code("" if v is None else v) for v in r.values)]) for r in rows]
    return page.table(["", *labels], shown, f"differences-{section}" if len(rows) > 12 else "")


def _subtitle(attempt: Attempt) -> str:
    about = attempt.about
    host = about.get("host", {}).get("name")
    parts = [about.get(name) for name in ("backend", "model", "stage", "platform")]
    parts += [str(about.get("started") or "").replace("T", " "), f"on {host}" if host else None]
    return " · ".join(str(part) for part in parts if part)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
