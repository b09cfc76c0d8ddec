"""Which number formats an accelerator can multiply matrices in, by its architecture."""

from __future__ import annotations

import re


def can_fp8(arch: str) -> bool:
    """``sm_89`` and later; MI300X, MI325X (``gfx942``), MI355X (``gfx950``) and ``gfx12``."""
    return compute_capability(arch) >= 89 or arch in ("gfx942", "gfx950") or arch.startswith("gfx12")


def can_fp4(arch: str) -> bool:
    """``sm_100`` and later; MI355X (``gfx950``) and ``gfx125``."""
    return compute_capability(arch) >= 100 or arch == "gfx950" or arch.startswith("gfx125")


def compute_capability(arch: str) -> int:
    """90 for ``sm_90`` and ``sm_90a``; 0 for what is not NVIDIA's."""
    match = re.fullmatch(r"sm_?(\d+)[a-z]?", arch)
    return int(match[1]) if match else 0
