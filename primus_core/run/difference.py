"""What differs between attempts, or between an attempt and today: by name, on one side or the other."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_VARIABLES = re.compile(
    r"(CUDA|NCCL|RCCL|GLOO|HIP|HSA|ROCR|ROCM|AMD|MIOPEN|HIPBLASLT|OMP|MKL|TORCH|PYTORCH|TRITON|NVTE|XLA|JAX|PRIMUS)_"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One name with its value on each side; None where a side has none."""

    name: str
    values: tuple[Any, ...]


def between(sides: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """The names whose values are not the same on all sides, in the order they first come."""
    names = dict.fromkeys(name for side in sides for name in side)
    rows = (Difference(name, tuple(side.get(name) for side in sides)) for name in names)
    return [row for row in rows if any(value != row.values[0] for value in row.values[1:])]


def configuration(origins: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of ``origins.json``."""
    return {name: entry["value"] for name, entry in origins.items()}


def patches(record: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What became of each patch, from ``patches.json``."""
    return {entry["name"]: entry["status"] for entry in record}


def code(about: Mapping[str, Any], diff: str) -> dict[str, Any]:
    """Commit and uncommitted changes of ``run.json`` and ``git.diff``."""
    files = sum(line.startswith("diff --git ") for line in diff.splitlines())
    digest = hashlib.sha256(diff.encode(errors="surrogateescape")).hexdigest()[:8]
    changes = f"changes of {files} file{'s' * (files != 1)} ({digest})" if diff else "nothing"
    return {"commit": about.get("git_commit"), "uncommitted": changes}


def hardware(about: Mapping[str, Any]) -> dict[str, Any]:
    """Platform, host, system and devices of ``run.json``."""
    host = about.get("host", {})
    return {
        "platform": about.get("platform"),
        "devices": _devices(about.get("devices")),
        **{name: host.get(name) for name in ("name", "system", "python")},
    }


def _devices(devices: Sequence[Mapping[str, Any]] | None) -> str | None:
    """``8 x AMD Instinct MI300X``; None where it was not written down."""
    if devices is None:
        return None
    return ", ".join(f"{count} x {name}" for name, count in Counter(each["name"] for each in devices).items())


def data(about: Mapping[str, Any]) -> dict[str, Any]:
    """Fingerprints of the data files, by name."""
    return {name: entry["fingerprint"] for name, entry in about.get("data", {}).items()}


def environment(about: Mapping[str, Any]) -> dict[str, str]:
    """The variables that change what engines and their libraries do."""
    return {name: value for name, value in about.get("environment", {}).items() if _VARIABLES.match(name)}
