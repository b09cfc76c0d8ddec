"""AMD's products, and what its tools say of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from primus_core.platforms.peaks import AMD
from primus_core.plugins.records import Device

type Found = list[tuple[str, Device]]
"""Devices with their UUIDs, as far as these are known."""

_SECONDS = 20  # amd-smi was seen to wait for ever
_UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30}


def product(arch: str, device_id: int | None, units: float | None, memory: int | None) -> Device:
    """The device with its name and peaks; by its architecture alone where the PCI device id is not known.

    ``units`` are its compute units: of a partition only its own, which have their share of the peaks.
    """
    if device_id is None or device_id not in AMD:
        return Device(name=f"AMD {arch}", arch=arch, memory=memory)
    name, whole, peaks = AMD[device_id]
    share = min(units / whole, 1.0) if units else 1.0
    return Device(
        name=name, arch=arch, memory=memory, peak_flops={dtype: peak * share for dtype, peak in peaks.items()}
    )


def from_tools(environ: Mapping[str, str]) -> Found:
    """What the first tool finds that is here and answers in time."""
    for argv, read in _TOOLS:
        tool = shutil.which(argv[0], path=environ.get("PATH"))
        if tool and (answer := _ask([tool, *argv[1:]])) and (found := list(read(answer))):
            return found
    return []


def _ask(argv: list[str]) -> str:
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def from_amd_smi(text: str) -> Iterator[tuple[str, Device]]:
    """``amd-smi static --json``: a list, or since 26.2.1 a mapping with one."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return
    for entry in answer["gpu_data"] if isinstance(answer, dict) else answer:
        asic, vram = entry.get("asic", {}), entry.get("vram", {})
        arch = str(asic.get("target_graphics_version", ""))
        size = vram.get("size", {}) if isinstance(vram, dict) else {}
        memory = size["value"] * _UNITS.get(str(size.get("unit")), 1) if isinstance(size.get("value"), int) else None
        device = product(arch, _number(asic.get("device_id")), _number(asic.get("num_compute_units")), memory)
        if not device.peak_flops and asic.get("market_name"):
            device = Device(name=asic["market_name"], arch=arch, memory=memory)
        yield str(asic.get("asic_serial", "")), device


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", value) else int(value) if value.isdecimal() else None
    return value if isinstance(value, int) else None


def from_rocminfo(text: str) -> Iterator[tuple[str, Device]]:
    """``rocminfo``: one block for each agent, processors among them. Names in it are not dependable."""
    for block in re.split(r"^Agent \d+\s*$", text, flags=re.MULTILINE)[1:]:
        fields: dict[str, str] = {}
        for line in block.splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
        if fields.get("Device Type") != "GPU":
            continue
        chip = re.match(r"(\d+)", fields.get("Chip ID", ""))
        units = fields.get("Compute Unit", "")
        pool = re.match(r"(\d+)", fields.get("Size", ""))
        yield (
            fields.get("Uuid", ""),
            product(
                fields.get("Name", ""),
                int(chip[1]) if chip else None,
                int(units) if units.isdecimal() else None,
                int(pool[1]) * 1024 if pool else None,
            ),
        )


_TOOLS: tuple[tuple[tuple[str, ...], Callable[[str], Iterator[tuple[str, Device]]]], ...] = (
    (("amd-smi", "static", "--json"), from_amd_smi),
    (("rocminfo",), from_rocminfo),
)
