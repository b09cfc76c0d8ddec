"""What is wrong, from what all ranks saw and measured. Plain data in, sentences out; no torch."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

type Rank = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on something is wrong; sizes in bytes, times in seconds."""

    tolerance: float
    free_disk: float
    busy_memory: float
    clock_skew: float
    expected_gpus: int | None = None


def problems(ranks: Sequence[Rank], clocks: Mapping[str, float], limits: Limits) -> list[str]:
    """All that is wrong, each with its place. ``clocks`` is by how many seconds each host is ahead."""
    nodes = leaders(ranks)
    return [
        *(f"{rank['host']}: {text}" for rank in nodes for text in rank.get("shared", ())),
        *_gpus(ranks, nodes, limits),
        *_odd("device", {place(rank): rank["device"]["name"] for rank in ranks}),
        *_odd("device memory", {place(rank): rank["device"].get("memory") for rank in ranks}),
        *_odd("ranks on the node", {rank["host"]: rank["local_world_size"] for rank in nodes}),
        *_odd("processors", {rank["host"]: rank["node"]["cpus"] for rank in nodes}),
        *_versions(nodes, "versions"),
        *_versions(nodes, "distributions"),
        *_space(nodes, limits),
        *_clocks(clocks, limits),
        *_slow(ranks, limits),
    ]


def leaders(ranks: Iterable[Rank]) -> list[Rank]:
    """The first rank of each node."""
    return [rank for rank in ranks if rank["local_rank"] == 0]


def place(rank: Rank) -> str:
    """``node-3 GPU 5``; of a CPU the rank."""
    kind = "GPU" if rank["device"]["count"] else "process"
    return f"{rank['host']} {kind} {rank['local_rank']}"


def _gpus(ranks: Sequence[Rank], nodes: Sequence[Rank], limits: Limits) -> Iterator[str]:
    if limits.expected_gpus is not None:
        for rank in nodes:
            if rank["device"]["count"] != limits.expected_gpus:
                yield f"{rank['host']}: {rank['device']['count']} GPUs are visible, not {limits.expected_gpus}"
    else:
        yield from _odd("visible GPUs", {rank["host"]: rank["device"]["count"] for rank in nodes})
    for rank in ranks:
        device = rank["device"]
        used = device.get("memory", 0) - device.get("free_memory", 0)
        if used > limits.busy_memory:
            yield f"{place(rank)}: {used / 2**30:.1f} GiB of its memory are in use already"


def _odd(what: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Those that are not like most."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for where, value in values.items():
        groups[value].append(where)
    common = max(groups, key=lambda value: len(groups[value]))
    for value, places in groups.items():
        if value != common:
            yield f"{_few(places)}: {what} {_said(value)}, elsewhere {_said(common)}"


def _versions(nodes: Sequence[Rank], kind: str) -> Iterator[str]:
    for name in sorted({name for rank in nodes for name in rank[kind]}):
        yield from _odd(name, {rank["host"]: rank[kind].get(name) for rank in nodes})


def _space(nodes: Sequence[Rank], limits: Limits) -> Iterator[str]:
    for rank in nodes:
        free = rank["node"]["free_disk"]
        if free < limits.free_disk:
            yield f"{rank['host']}: the workspace has {free / 1e9:.1f} GB left, less than {limits.free_disk / 1e9:g}"


def _clocks(clocks: Mapping[str, float], limits: Limits) -> Iterator[str]:
    for host, offset in clocks.items():
        if abs(offset) > limits.clock_skew:
            yield f"{host}: its clock is {abs(offset):.2f} s {'ahead' if offset > 0 else 'behind'}"


def _slow(ranks: Sequence[Rank], limits: Limits) -> Iterator[str]:
    """Devices and links far below the median of their kind; of two, below the other one."""
    rates: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for rank in ranks:
        for name, rate in rank.get("rates", {}).items():
            rates[rank["device"]["name"], name][place(rank)] = rate
    for row in groups(ranks):
        if row["bytes"] > 2**20:  # small ones are all latency, and noise
            rates["", f"{row['test']} of {size(row['bytes'])}"][row["where"]] = row["bus"]
    for (_, name), values in rates.items():
        usual = statistics.median_high(values.values())
        for where, rate in values.items():
            if rate < usual * (1 - limits.tolerance):
                yield f"{where}: {name} reaches {said(name, rate)}, {1 - rate / usual:.0%} less than the median"


def groups(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Collectives, one row for each group and size: all its ranks take part, and the slowest tells the time."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for rank in ranks:
        for each in rank.get("collectives", ()):
            where = place(rank) if "p2p" in each["test"] else rank["host"] if "intra" in each["test"] else "all nodes"
            key = (each["test"], where, each["bytes"])
            row = rows.setdefault(key, {"test": each["test"], "where": where, "bytes": each["bytes"], "seconds": 0.0})
            row["seconds"] = max(row["seconds"], each["seconds"])
            row["bus"] = each["factor"] * each["bytes"] / row["seconds"]
    return list(rows.values())


def said(name: str, rate: float) -> str:
    """A rate with its unit: products in FLOP/s, all else in bytes/s."""
    if name.startswith("gemm"):
        return f"{rate / 1e12:.4g} TFLOP/s" if rate > 1e12 else f"{rate / 1e9:.4g} GFLOP/s"
    return f"{rate / 1e9:.4g} GB/s"


def size(count: int) -> str:
    """``64 MiB``, ``8 B``."""
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count} B"


def _said(value: Any) -> str:
    return "not there" if value is None else str(value)


def _few(where: Sequence[str], most: int = 4) -> str:
    more = f" and {len(where) - most} more" if len(where) > most else ""
    return ", ".join(where[:most]) + more
