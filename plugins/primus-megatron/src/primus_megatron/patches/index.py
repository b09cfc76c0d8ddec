"""Index files of the data: there whole, or not at all."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any


class _Numpy(ModuleType):
    """NumPy, but for ``save()``, which writes beside the file and then renames."""

    def __init__(self, numpy: ModuleType) -> None:
        super().__init__(numpy.__name__)
        self._numpy = numpy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numpy, name)

    def save(self, file: str, *args: Any, **kwargs: Any) -> None:
        place, host = Path(file), socket.gethostname()
        for old in place.parent.glob(f"{place.name}.{host}-*.new"):
            if not Path(f"/proc/{old.suffixes[-2].rpartition('-')[2]}").exists():
                old.unlink(missing_ok=True)  # of a run that was killed
        new = place.with_name(f"{place.name}.{host}-{os.getpid()}.new")
        try:
            with new.open("wb") as stream:
                self._numpy.save(stream, *args, **kwargs)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)


def atomic(original: ModuleType) -> ModuleType:
    """For a module's ``numpy``. The engine takes index files that exist for finished ones."""
    return _Numpy(original)
