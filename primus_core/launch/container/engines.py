"""The programs that run containers: which is there, and their command lines."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from primus_core.errors import EnvironmentFault, UserError
from primus_core.launch.container.box import Box, Mount

type Words = tuple[str, ...]

_DOCKER_SOCKETS = ("/var/run/docker.sock", "~/.docker/run/docker.sock")
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One program. ``run`` gives the words in front of the inner command, ``remove`` those that end a container."""

    run: Callable[[Box], Words]
    remove: Callable[[str], Words] | None = None
    keeps_environment: bool = False
    """Whether all variables of this process are there inside."""


def choose(wanted: str | None, environ: Mapping[str, str]) -> str:
    """The name of the program to use: the wanted one, else docker, podman, apptainer or bubblewrap as they are there.

    A docker without a daemon is passed over. Raises ``EnvironmentFault`` where there is none.
    """
    if wanted is not None:
        return wanted
    found = [name for name in ENGINES if shutil.which(name, path=environ.get("PATH"))]
    usable = [name for name in found if name != "docker" or _has_daemon(environ)]
    if not (usable or found):
        raise EnvironmentFault(f"no program for containers is here: none of {', '.join(ENGINES)}")
    return (usable or found)[0]


def _has_daemon(environ: Mapping[str, str]) -> bool:
    rootless = f"{environ.get('XDG_RUNTIME_DIR', '')}/docker.sock"
    return (
        bool(environ.get("DOCKER_HOST") or environ.get("DOCKER_CONTEXT"))
        or any(Path(socket).expanduser().exists() for socket in _DOCKER_SOCKETS)
        or Path(rootless).exists()
    )


def docker(box: Box) -> Words:
    """``docker run``; its daemon sets limits as they are asked for, whatever this user's own are."""
    limits = {"memlock": "-1:-1", "stack": "67108864:67108864", "nofile": "1048576:1048576"}
    user = box.user or (f"{os.getuid()}:{os.getgid()}" if os.getuid() else None)
    gpus = box.gpus or ("all" if box.platform == "cuda" else None)
    words = [*_option("--gpus", gpus), *_option("--user", user)]
    if user and ":" in user and "HOME" not in box.names:  # not in the image's list of users: nobody says where home is
        words += ["--env", "HOME=/tmp"]
    return ("docker", *_run(box, limits, words))


def podman(box: Box) -> Words:
    """``podman run``: a process of this user, who cannot give more than he has."""
    limits = {name: _hard(number) for name, number in _LIMITS.items()}
    limits["nproc"] = _at_most(limits["nproc"], int(Path("/proc/sys/kernel/pid_max").read_text()))
    if limits["memlock"] != "-1:-1" and _may_raise_limits():
        limits["memlock"] = "-1:-1"
    words = ["--user", box.user] if box.user else ["--userns", "keep-id"] if os.getuid() else []
    if box.platform == "cuda":
        words += ["--device", f"nvidia.com/gpu={box.gpus or 'all'}"]
    elif box.gpus:
        words += ["--gpus", box.gpus]
    return ("podman", *_run(box, limits, words))


def _run(box: Box, limits: Mapping[str, str], own: Iterable[str]) -> Iterator[str]:
    """What docker and podman have in common."""
    if box.image is None:
        raise UserError("no image: give --image, set DOCKER_IMAGE, or write launch.container.image in the experiment")
    yield from ("run", "--rm", "--interactive", "--name", box.name, "--label", f"primus={box.label}")
    yield from ("--workdir", str(box.workdir), "--network", box.network or "host")
    if box.shm_size and box.ipc == "host":
        raise UserError("--shm-size sets the shared memory of a container of its own, which --ipc host does not have")
    yield from ("--shm-size", box.shm_size) if box.shm_size else ("--ipc", box.ipc or "host")
    yield from _option("--ipc", box.ipc if box.shm_size else None)
    for mount in box.mounts:
        yield from _bind(mount)
    yield from _each("--device", box.devices)
    yield from _each("--group-add", box.group_add)
    yield from _each("--cap-add", box.cap_add)
    yield from _each("--security-opt", box.security_opt)
    asked = {limit.partition("=")[0]: limit.partition("=")[2] for limit in box.ulimit}
    yield from _each("--ulimit", [f"{name}={value}" for name, value in ({**limits, **asked}).items()])
    yield from _option("--cpus", box.cpus)
    yield from _option("--memory", box.memory)
    if box.privileged:
        yield "--privileged"
    yield from own
    yield from _each("--env", [f"{name}={value}" for name, value in box.environ.items()])
    yield from _each("--env", box.names)
    yield from box.extra
    yield box.image


def apptainer(box: Box) -> Words:
    """``apptainer exec``: as this user, in the machine's own network; it takes the whole environment along."""
    _refuse(box, "apptainer", "ipc", "shm_size", "ulimit", "user", "group_add", "privileged", "device")
    if box.image is None:
        raise UserError("no image: give --image FILE.sif or docker://NAME, or write launch.container.image")
    words = ["apptainer", "exec", "--no-home", "--pwd", str(box.workdir)]
    words += {"rocm": ["--rocm"], "cuda": ["--nv"]}.get(box.platform, [])
    for mount in box.mounts:
        if {":", ","} & set(f"{mount.source}{mount.target}"):
            raise UserError(f"apptainer cannot mount {mount.source}: there is a ':' or a ',' in the path")
        words += ["--bind", ":".join(filter(None, (str(mount.source), mount.target, mount.options)))]
    words += [*_option("--cpus", box.cpus), *_option("--memory", box.memory)]
    words += ["--net", "--network", box.network] if box.network not in (None, "host") else []
    words += ["--add-caps", ",".join(box.cap_add)] if "cap_add" in box.asked else []
    words += _each("--security", box.security_opt if "security_opt" in box.asked else ())
    return (*words, *box.extra, box.image)


def bwrap(box: Box) -> Words:
    """``bwrap``: the image is the root folder of a system; without one, this system, of which only mounts change."""
    refused = ("shm_size", "ulimit", "user", "group_add", "cap_add", "security_opt", "cpus", "memory", "gpus")
    _refuse(box, "bwrap", *refused, "privileged", "device")
    root = Path(box.image) if box.image else Path("/")
    if not root.is_dir():
        raise UserError(f"--image {box.image}: bwrap takes the root folder of a system, and that is none")
    words = ["bwrap", "--ro-bind", str(root), "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
    words += ["--ro-bind", "/sys", "/sys", "--tmpfs", "/tmp", "--die-with-parent", "--unshare-pid"]
    words += ["--unshare-ipc"] if box.ipc not in (None, "host") else []
    words += ["--unshare-net"] if box.network == "none" else []
    for mount in box.mounts:
        words += ["--ro-bind" if "ro" in mount.options.split(",") else "--bind", str(mount.source), mount.target]
    words += ["--chdir", str(box.workdir)]
    for name, value in box.environ.items():
        words += ["--setenv", name, value]
    return (*words, *box.extra, "--")


ENGINES: Mapping[str, Engine] = {
    "docker": Engine(run=docker, remove=lambda name: ("docker", "rm", "--force", name)),
    "podman": Engine(run=podman, remove=lambda name: ("podman", "rm", "--force", "--time", "0", "--ignore", name)),
    "apptainer": Engine(run=apptainer, keeps_environment=True),
    "bwrap": Engine(run=bwrap, keeps_environment=True),
}
"""In the order in which they are preferred."""

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
}


def _hard(number: int) -> str:
    _, hard = resource.getrlimit(number)
    return f"{hard}:{hard}"


def _at_most(limit: str, most: int) -> str:
    hard = int(limit.partition(":")[0])
    chosen = most if hard < 0 else min(hard, most)
    return f"{chosen}:{chosen}"


def _may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(mask >> _CAP_SYS_RESOURCE & 1)


def _refuse(box: Box, engine: str, *options: str) -> None:
    if refused := [f"--{option.replace('_', '-')}" for option in options if option in box.asked]:
        raise UserError(f"{engine} cannot do {', '.join(refused)}")


def _bind(mount: Mount) -> Words:
    """A mount for docker and podman: the short form knows no colons in paths, the long one no commas."""
    source, target = str(mount.source), mount.target
    if ":" not in source + target:
        return ("--volume", ":".join(filter(None, (source, target, mount.options))))
    if "," in source + target:
        raise UserError(f"{source}: a path with both ':' and ',' cannot be mounted")
    read_only = ",readonly" if "ro" in mount.options.split(",") else ""
    return ("--mount", f"type=bind,source={source},target={target}{read_only}")


def _option(name: str, value: str | None) -> Words:
    return (name, value) if value is not None else ()


def _each(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (name, value)]
