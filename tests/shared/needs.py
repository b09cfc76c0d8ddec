"""Programs that tests need and that pip cannot install: missing, they skip a test, and fail it under CI."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def need(*programs: str) -> None:
    """Skip or fail unless all programs are there; ``scripts/system_packages.sh`` installs them."""
    path = f"{os.environ['PATH']}:{_SBIN}"
    if missing := [program for program in programs if shutil.which(program, path=path) is None]:
        refuse(f"{', '.join(missing)} missing: run scripts/system_packages.sh")


def refuse(reason: str) -> NoReturn:
    """Say that a test cannot run here."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
