"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from primus_core.cli.text import columns
from primus_preflight.verdict import Rank, groups, leaders, place, said, size


def lines(ranks: Sequence[Rank], clocks: Mapping[str, float], problems: Sequence[str]) -> Iterator[str]:
    """Nodes, devices, collectives, and what is wrong."""
    yield from _table(_nodes(ranks, clocks))
    yield from _table(_devices(ranks))
    yield from _table(_collectives(ranks))
    versions = leaders(ranks)[0]["versions"]
    yield ""
    yield "  ".join(f"{name} {version}" for name, version in versions.items())
    yield ""
    if problems:
        yield f"{len(problems)} problem{'s' * (len(problems) > 1)}:"
        yield from (f"  {problem}" for problem in problems)
    else:
        yield "nothing is wrong"


def _table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    found = list(rows)
    if len(found) > 1:
        yield ""
        yield from columns(found).split("\n")


def _nodes(ranks: Sequence[Rank], clocks: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    yield "node", "ranks", "processors", "free memory", "free disk", "writes", "clock"
    for rank in leaders(ranks):
        node, rate, clock = rank["node"], rank.get("write_rate"), clocks.get(rank["host"])
        yield (
            rank["host"],
            str(rank["local_world_size"]),
            str(node["cpus"]),
            _gib(node["free_memory"]),
            _gib(node["free_disk"]),
            "-" if rate is None else f"{rate / 1e9:.2f} GB/s",
            "-" if clock is None else f"{clock * 1000:+.1f} ms",
        )


def _devices(ranks: Sequence[Rank]) -> Iterator[tuple[str, ...]]:
    names = list(dict.fromkeys(name for rank in ranks for name in rank.get("rates", {})))
    yield "device", "name", "free memory", *names
    for rank in ranks:
        device = rank["device"]
        rates = (said(name, rank["rates"][name]) if name in rank.get("rates", {}) else "-" for name in names)
        yield place(rank), device["name"], _gib(device.get("free_memory")), *rates


def _collectives(ranks: Sequence[Rank]) -> Iterator[tuple[str, ...]]:
    """One row for each test and size, however many nodes there are: the median, and the slowest with its place."""
    yield "collective", "size", "time", "bus bandwidth", "slowest", "at"
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in groups(ranks):
        found.setdefault((row["test"], row["bytes"]), []).append(row)
    for (test, count), rows in found.items():
        middle = sorted(rows, key=lambda row: row["seconds"])[len(rows) // 2]
        worst = max(rows, key=lambda row: row["seconds"])
        rate = f"{middle['bus'] / 1e9:.4g} GB/s" if count >= 2**20 else "-"
        last = (_time(worst["seconds"]), worst["where"]) if len(rows) > 1 else ("-", worst["where"])
        yield test, size(count), _time(middle["seconds"]), rate, *last


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _gib(value: Any) -> str:
    return "-" if value is None else f"{value / 2**30:.1f} GiB"
