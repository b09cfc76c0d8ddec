"""What a container is to be like, whichever program makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from primus_core.errors import UserError


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine, and where it is inside."""

    source: Path
    target: str
    options: str = ""

    @classmethod
    def parse(cls, text: str) -> Mount:
        """``HOST[:CONTAINER[:OPTIONS]]``; relative paths count from the working folder, on both sides."""
        source, *more = text.split(":")
        if not source or len(more) > 2:
            raise UserError(f"--volume {text}: write HOST, HOST:CONTAINER or HOST:CONTAINER:ro")
        path = Path(source).expanduser().absolute()
        if not path.exists():
            raise UserError(f"--volume {text}: {path} is not there")
        target = Path(more[0]).expanduser().absolute() if more and more[0] else path
        return cls(path, str(target), more[1] if len(more) == 2 else "")

    @property
    def same(self) -> bool:
        """Whether it is the same path inside."""
        return str(self.source) == self.target and self.options in ("", "rw")


def outermost(mounts: list[Mount]) -> tuple[Mount, ...]:
    """The mounts without those that lie within others anyway, in their order."""
    kept: list[Mount] = []
    for mount in dict.fromkeys(mounts):
        others = [other for other in mounts if other.same and other != mount]
        if not (mount.same and any(mount.source.is_relative_to(other.source) for other in others)):
            kept.append(mount)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """``names`` are variables whose values come from the environment of the command; ``environ`` is set as it is."""

    image: str | None
    name: str
    label: str
    mounts: tuple[Mount, ...]
    workdir: Path
    names: tuple[str, ...]
    environ: Mapping[str, str]
    platform: str
    devices: tuple[str, ...] = ()
    group_add: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    ulimit: tuple[str, ...] = ()
    network: str | None = None
    ipc: str | None = None
    shm_size: str | None = None
    user: str | None = None
    cpus: str | None = None
    memory: str | None = None
    gpus: str | None = None
    privileged: bool = False
    extra: tuple[str, ...] = ()
    asked: tuple[str, ...] = field(default=())
    """The options that somebody gave, for programs that cannot do them all."""
