"""What a rank sees of its node and its device, plain data."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_DRIVERS = ("nvidia", "amdgpu")


def of_rank(rank: int, local_rank: int, local_world_size: int, workspace: Path, processor: str) -> dict[str, Any]:
    """Of this process; without a GPU its device is the ``processor``."""
    return {
        "rank": rank,
        "local_rank": local_rank,
        "local_world_size": local_world_size,
        "host": socket.gethostname(),
        "node": _host(workspace),
        "device": _device(local_rank, processor),
        "versions": _versions(),
        "distributions": {d.name: d.version for d in metadata.distributions() if d.name},
    }


def _host(workspace: Path) -> dict[str, Any]:
    memory = _meminfo()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory": memory.get("MemTotal"),
        "free_memory": memory.get("MemAvailable"),
        "free_disk": shutil.disk_usage(workspace).free,
        "free_shm": shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,
        "locked_memory": None if locked == resource.RLIM_INFINITY else locked,
    }


def _device(local_rank: int, processor: str) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"name": processor, "count": 0}
    properties = torch.cuda.get_device_properties(local_rank)
    free, total = torch.cuda.mem_get_info(local_rank)
    arch = getattr(properties, "gcnArchName", "").partition(":")[0] if torch.version.hip else ""
    return {
        "name": properties.name,
        "arch": arch or f"sm_{properties.major}{properties.minor}",
        "count": torch.cuda.device_count(),
        "units": properties.multi_processor_count,
        "memory": total,
        "free_memory": free,
    }


def _versions() -> dict[str, str]:
    """Of what a job runs on; what is not there is left out."""
    found = {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": _nccl(),
        **{driver: _text(Path(f"/sys/module/{driver}/version")) for driver in _DRIVERS},
    }
    return {name: version for name, version in found.items() if version}


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _text(file: Path) -> str | None:
    return file.read_text().strip() if file.is_file() else None


def _meminfo() -> dict[str, int]:
    """Bytes by name; empty where there is no such file."""
    if sys.platform != "linux":
        return {}
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}
