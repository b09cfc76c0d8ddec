"""What the wheel of the engine lacks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any


def compiled_helpers(original: Callable[..., Any]) -> Callable[..., Any]:
    """The wheel ships the compiled helpers and no Makefile; a checkout has the Makefile and compiles."""
    return original if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is None else lambda: None
