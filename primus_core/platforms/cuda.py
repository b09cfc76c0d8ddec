"""NVIDIA GPUs, from ``nvidia-smi`` or the driver's files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from primus_core.platforms.peaks import NVIDIA
from primus_core.platforms.visible import pick
from primus_core.plugins.records import Device

_QUERIES = ("uuid,memory.total,name,compute_cap", "uuid,memory.total,name")  # drivers up to 470 lack compute_cap
_SECONDS = 20
_MIB = 2**20


def detect(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Device, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves; ``arch`` is ``sm_90`` and alike."""
    found = _from_tool(environ) or _from_driver(root)
    devices, uuids = list(found.values()), list(found)
    words = environ.get("CUDA_VISIBLE_DEVICES", "")
    if devices and words.startswith("MIG-"):
        # A slice's share of memory and speed stands in no query.
        return tuple(Device(name=f"{devices[0].name} (MIG)", arch=devices[0].arch) for _ in words.split(","))
    return tuple(pick(devices, uuids, environ, "CUDA_VISIBLE_DEVICES"))


def _from_tool(environ: Mapping[str, str]) -> dict[str, Device]:
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    for query in _QUERIES if tool else ():
        argv = [str(tool), f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if answer.returncode == 0:
            return dict(_device(line) for line in answer.stdout.splitlines() if line.count(",") >= 2)
    return {}


def _device(line: str) -> tuple[str, Device]:
    uuid, memory, name, *capability = (field.strip() for field in line.split(","))
    arch = f"sm_{capability[0].replace('.', '')}" if capability else ""
    size = int(memory) * _MIB if memory.isdecimal() else None
    return uuid, Device(name=name, arch=arch, memory=size, peak_flops=NVIDIA.get(name, {}))


def _from_driver(root: Path) -> dict[str, Device]:
    """Where the tool is missing, as in some containers: names and UUIDs only."""
    found = {}
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        name = fields.get("Model", "").strip()
        found[fields.get("GPU UUID", file.parent.name).strip()] = Device(
            name=name, arch="", peak_flops=NVIDIA.get(name, {})
        )
    return found
