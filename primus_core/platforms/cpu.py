"""The host's processor: always there, one device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from primus_core.plugins.records import Device


def detect(root: Path = Path("/")) -> tuple[Device, ...]:
    """The processor with the host's memory; its peak is not stated anywhere dependable."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (Device(name=_name(root), arch=platform.machine(), memory=memory),)


def _name(root: Path) -> str:
    cpuinfo = root / "proc/cpuinfo"
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
