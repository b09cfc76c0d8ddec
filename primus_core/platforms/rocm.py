"""AMD GPUs, from the kernel driver's topology files: no tool, no library, no rights but reading.

Where these cannot be read, from the tools that come with ROCm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from primus_core.platforms.amd import from_tools, product
from primus_core.platforms.visible import pick
from primus_core.plugins.records import Device


def detect(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Device, ...]:
    """The GPUs (or partitions of them) that ``ROCR_`` and then ``HIP_`` or ``CUDA_VISIBLE_DEVICES`` leave.

    Without ``/dev/kfd``, as in a container that was not given it, there are none.
    """
    if not (root / "dev/kfd").exists():
        return ()
    nodes = [node for node in map(_read, _folders(root)) if node.get("simd_count") and node.get("gfx_target_version")]
    found = [(f"GPU-{node.get('unique_id', 0):016x}", _device(node)) for node in nodes] or from_tools(environ)
    uuids, devices = [uuid for uuid, _ in found], [device for _, device in found]
    pairs = pick(list(zip(devices, uuids, strict=True)), uuids, environ, "ROCR_VISIBLE_DEVICES")
    return tuple(
        pick([d for d, _ in pairs], [u for _, u in pairs], environ, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    )


def gfx(version: int) -> str:
    """``90402`` -> ``gfx942``; minor and stepping are one hexadecimal digit each."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _folders(root: Path) -> list[Path]:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    return sorted(nodes.glob("[0-9]*"), key=lambda folder: int(folder.name))


def _read(folder: Path) -> dict[str, int]:
    """A node's numbers, with its memory in bytes as ``memory``; empty for a GPU that this process may not use."""
    try:
        numbers = _numbers(folder / "properties")
        banks = (_numbers(bank) for bank in (folder / "mem_banks").glob("*/properties"))
        numbers["memory"] = sum(bank.get("size_in_bytes", 0) for bank in banks) or numbers.get("local_mem_size", 0)
    except PermissionError:
        return {}
    return numbers


def _numbers(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in file.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _device(node: Mapping[str, int]) -> Device:
    units = node["simd_count"] / node.get("simd_per_cu", 4)
    return product(gfx(node["gfx_target_version"]), node.get("device_id"), units, node["memory"] or None)
