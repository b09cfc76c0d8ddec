"""What is known about a plugin, and where its code and its errors stand."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from primus_core.errors import EnvironmentFault
from primus_core.plugins.records import Ref, load

type Status = Literal["active", "disabled", "broken"]


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """A plugin as it was found. ``error`` is one line with file and line; ``traceback`` the whole story, if any."""

    name: str
    distribution: str
    version: str
    entry: str
    status: Status
    error: str | None = None
    traceback: str | None = None
    hooks: tuple[str, ...] = ()
    seconds: float = 0.0
    file: Path | None = None

    @property
    def source(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}".rstrip()

    def owns(self, file: str) -> bool:
        """Whether a source file belongs to this plugin."""
        if self.file is None:
            return False
        below_top = self.entry.partition(":")[0].count(".") + (self.file.name == "__init__.py")
        if not below_top:
            return Path(file) == self.file
        return Path(file).is_relative_to(self.file.parents[below_top - 1])


class Contribution[R](NamedTuple):
    """A record, who contributed it, and where (``file:line`` of the hook implementation)."""

    record: R
    plugin: PluginInfo
    place: str

    def load(self, ref: Ref) -> Any:
        """Import what the record refers to; an ``EnvironmentFault`` that names the plugin when that fails."""
        try:
            return load(ref)
        except Exception as error:
            raise EnvironmentFault(
                f"plugin {self.plugin.name!r} ({self.plugin.source}): cannot load {ref!r}: "
                f"{describe(error, self.plugin)}"
            ) from error


def place_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def describe(error: BaseException, plugin: PluginInfo | None = None) -> str:
    """An exception in one line with the place that raised it: the last one in the plugin's own code, if any is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    own = [frame for frame in frames if plugin is not None and plugin.owns(frame.filename)]
    last = (own or frames)[-1:]
    return f"{text} ({last[0].filename}:{last[0].lineno})" if last else text


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen importlib") or Path(file).parent == _OURS or "/importlib/" in file


_OURS = Path(__file__).parent
