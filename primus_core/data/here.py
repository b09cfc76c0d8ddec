"""What is said about data that is not on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from primus_core.config.values import Values
from primus_core.data.head import look
from primus_core.errors import Problem, UserError


def tokenizer_here(values: Values, key: str, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Problems with the tokenizer that ``key`` names: none for a local one or one in the hub's cache.

    A notice for one that will be fetched, an error for a missing folder and for a name that cannot be fetched.
    """
    if not (name := str(values[key] or "")):
        yield values.problem(key, "text needs a tokenizer: give its folder or file")
        return
    local = f"{key} takes the folder of a local one too"
    if Path(name).exists():
        return
    if name.startswith(("/", "./", "../", "~")) or name.count("/") != 1:
        yield values.problem(key, f"there is no {name}; give the folder or file of a tokenizer")
    elif not _cached(name, environ):
        if environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
            yield values.problem(key, f"{name} is not in the hub's cache and HF_HUB_OFFLINE is set; {local}")
        else:
            yield values.problem(key, f"{name} will be fetched from the hub; {local}", "notice")


def tokens_here(values: Values, key: str, prefix: str) -> Iterator[Problem]:
    """A problem with tokens of ``primus data prepare`` that ``key`` names by their path without its ending."""
    missing = [f"{prefix}{ending}" for ending in (".bin", ".idx") if not Path(f"{prefix}{ending}").is_file()]
    if missing:
        hint = "; write it without its ending" if Path(prefix).is_file() else " (`primus data prepare` writes them)"
        yield values.problem(key, f"there is no file {' and '.join(missing)}{hint}")
        return
    try:
        look(Path(prefix))
    except UserError as error:
        yield values.problem(key, str(error))


def _cached(name: str, environ: Mapping[str, str]) -> bool:
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(environ.get("HF_HOME") or cache / "huggingface")
    return (Path(environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}").is_dir()
