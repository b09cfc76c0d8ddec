"""Backends of the primus project by name, and the distributions that bring them: for hints on what to install."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "megatron": "primus-megatron",
    "torchtitan": "primus-torchtitan",
    "maxtext": "primus-maxtext",
    "megatron_bridge": "primus-bridge",
    "diffusion": "primus-diffusion",
    "nemo_automodel": "primus-automodel",
    "worldmirror": "primus-worldmirror",
    "hummingbirdxt": "primus-hummingbird",
}
