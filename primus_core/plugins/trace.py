"""Hook calls in a few words, for ``PRIMUS_TRACE_HOOKS=1``: enough to follow, nothing secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primus_core.plugins.records import EnvVar
from primus_core.secrets import MASK, is_secret_key, is_secret_variable

_LONGEST = 60


def brief(value: Any, name: str = "") -> str:
    """A value in a few words. Free text that may hold a secret (argv, environments, objects) is only counted."""
    match value:
        case _ if name and (is_secret_key(name) or is_secret_variable(name)):
            return MASK
        case None | bool() | int() | float():
            return repr(value)
        case str() | Path():
            text = repr(str(value))
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...'"
        case EnvVar():
            shown = MASK if value.secret else brief(value.value, value.name)
            return f"EnvVar({value.name}={shown}, origin={value.origin!r})"
        case BaseException():
            return f"raises {type(value).__name__}"
        case Mapping() if name == "environ":
            return f"<{len(value)} variables>"
        case Mapping():
            return "{" + ", ".join(f"{key}: {brief(item, str(key))}" for key, item in value.items()) + "}"
        case _ if names := _fields(value):
            fields = [
                f"{field}={brief(item, field)}"
                for field in names
                if isinstance(item := getattr(value, field), str | int | float | Path)
            ]
            return f"{type(value).__name__}({', '.join(fields)})"
        case Sequence() if name != "argv":
            return "[" + ", ".join(map(brief, value)) + "]"
        case _:
            return f"<{type(value).__name__}>"


def _fields(value: Any) -> Sequence[str]:
    """Names of the fields of a dataclass or named tuple; none of anything else."""
    if isinstance(value, type):
        return ()
    return getattr(value, "_fields", None) or [
        each.name for each in getattr(value, "__dataclass_fields__", {}).values()
    ]
