"""From the options of ``primus container`` to a plan."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import UserError
from primus_core.launch import env, nested
from primus_core.launch.container.box import Box, Mount, outermost
from primus_core.launch.container.engines import ENGINES, choose
from primus_core.launch.hosts import node_of, topology
from primus_core.launch.plan import Plan
from primus_core.plugins.records import EnvVar

if TYPE_CHECKING:
    from primus_core.launch.plan import LaunchRequest


def _refuse_clean(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        raise UserError(
            "--clean removed all containers of the machine, other people's too, and is gone. Containers of primus go "
            "away by themselves; 'docker ps --filter label=primus' (or podman ps) shows those that run"
        )


def _option(*names: str, many: bool = False, **how: Any) -> click.Option:
    return click.Option(list(names), multiple=many, **how)


OPTIONS = [
    _option("--image", metavar="NAME", help="Instead of $DOCKER_IMAGE and launch.container.image."),
    _option("--engine", type=click.Choice(list(ENGINES)), help="The program; by default the first that is here."),
    _option("--primus", metavar="COMMAND", help="The primus inside; by default 'primus', found by PATH."),
    _option("--volume", "-v", many=True, metavar="HOST[:INSIDE[:ro]]", help="A folder or file to be there, too."),
    _option("--env", many=True, metavar="NAME[=VALUE]", help="A variable; by NAME alone, as your shell has it."),
    _option("--device", many=True, metavar="PATH", help="Besides those of the GPUs."),
    _option("--name", metavar="PREFIX", help="Beginning of the container's name; the rest makes it unique."),
    _option("--network", metavar="MODE", help="host by default."),
    _option("--ipc", metavar="MODE", help="host by default, unless --shm-size is given."),
    _option("--shm-size", metavar="SIZE", help="Shared memory of its own, such as 64g."),
    _option("--ulimit", many=True, metavar="NAME=SOFT[:HARD]", help="A limit of processes inside."),
    _option("--user", metavar="UID[:GID]", help="Who the processes belong to; by default you."),
    _option("--group-add", many=True, metavar="GROUP", help="Besides those that own the GPUs."),
    _option("--cap-add", many=True, metavar="CAPABILITY", help="Besides SYS_PTRACE."),
    _option("--privileged", is_flag=True, default=None, help="Without any separation."),
    _option("--security-opt", many=True, metavar="OPTION", help="Instead of seccomp=unconfined."),
    _option("--cpus", metavar="NUMBER", help="Processors that it may use."),
    _option("--memory", metavar="SIZE", help="Memory that it may use, such as 512g."),
    _option("--gpus", metavar="WHICH", help="NVIDIA GPUs as docker counts them; all by default."),
    _option("--clean", is_flag=True, expose_value=False, callback=_refuse_clean, is_eager=True, hidden=True),
]

_MANY = ("volume", "device", "ulimit", "group_add", "cap_add", "security_opt")
_ROCM_DEVICES = ("/dev/kfd", "/dev/dri")
_NETWORK_DEVICES = ("/dev/infiniband",)
_FORWARDED = re.compile(
    r"(PRIMUS|NCCL|RCCL|GLOO|IONIC|HIPBLASLT|MSCCL|MSCCLPP|TORCH|NVTE|HSA|HIP|ROCR|CUDA|GPU|UCX|FI|OMP|MIOPEN|TRITON|XLA"
    r"|WANDB|MLFLOW|SLURM|SLURMD|HF)_\w+|GPUS_PER_NODE|NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT"
)
_REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for: options win over ``launch.container``; of lists both count, the file's first."""

    given: Mapping[str, Any]

    @classmethod
    def of(cls, request: LaunchRequest) -> Settings:
        section = request.experiment.launch.find(("container",))
        file = section.plain() if isinstance(section, Tree) else {}
        given: dict[str, Any] = {name: value for name, value in file.items() if value is not None}
        if image := request.environ.get("DOCKER_IMAGE"):
            given["image"] = image
        for name, value in request.options.items():
            if name in _MANY:
                given[name] = (*given.get(name, ()), *value)
            elif value is not None:
                given[name] = value
        return cls({name: value for name, value in given.items() if value not in ((), [], False)})

    def text(self, name: str) -> str | None:
        value = self.given.get(name)
        return None if value is None else str(value)

    def list(self, name: str) -> tuple[str, ...]:
        return tuple(map(str, self.given.get(name, ())))


def plan(request: LaunchRequest) -> Plan:
    """One container on this machine, with primus in it."""
    settings = Settings.of(request)
    name = choose(settings.text("engine"), request.environ)
    engine = ENGINES[name]
    named = {var.name: var for var in env.of_command_line(request)}
    inner, hidden = nested.command(request, [settings.text("primus") or "primus"], named)
    mounts = outermost([*_mounts(request), *map(Mount.parse, settings.list("volume"))])
    asked = [*named, *(var.name for var in hidden)]
    forwarded = sorted(request.environ) if engine.keeps_environment else _forwarded(request, mounts, asked)
    shell = EnvVar(name=env.SHELL_NAMES, value=",".join(forwarded), origin="primus: set by you, not by the image")
    box = Box(
        image=settings.text("image"),
        name=_name(request, settings.text("name") or "primus"),
        label=str(request.attempt),
        mounts=mounts,
        workdir=Path.cwd(),
        names=(*forwarded, env.ATTEMPT, env.OUTER, env.LIFELINE, env.SHELL_NAMES),
        environ={},
        platform=request.platform,
        devices=tuple(dict.fromkeys([*_devices(request.platform), *_there(settings.list("device"))])),
        group_add=(*_groups(request.platform), *settings.list("group_add")),
        cap_add=("SYS_PTRACE", *settings.list("cap_add")),
        security_opt=settings.list("security_opt") or ("seccomp=unconfined",),
        ulimit=settings.list("ulimit"),
        **{key: settings.text(key) for key in ("network", "ipc", "shm_size", "user", "cpus", "memory", "gpus")},
        privileged=bool(settings.given.get("privileged")),
        extra=tuple(request.options.get("extra", ())),
        asked=tuple(settings.given),
    )
    return Plan(
        argv=(*engine.run(box), *inner),
        env=(*named.values(), *hidden, shell),
        ranks=nested.ranks(request, *_size(request)),
        node=node_of(request.environ),
        again=name,
        lifeline=True,
        cleanup=(engine.remove(box.name),) if engine.remove else (),
    )


def _size(request: LaunchRequest) -> tuple[int | None, int]:
    """How many machines there are, and how many ranks each has by itself."""
    nodes = request.environ.get("NNODES") or topology(request.environ).get("NNODES", "1")
    said = "--nnodes" in " ".join(request.argv) or "nnodes" in request.experiment.launch.items
    devices = 1 if request.platform == "cpu" else max(1, len(request.devices))
    return (int(nodes) if nodes.isdecimal() and not said else None), devices


def _name(request: LaunchRequest, prefix: str) -> str:
    """A name that no other container has, and that tells what it is for."""
    job = request.environ.get("SLURM_JOB_ID", str(os.getpid()))
    words = (prefix, request.experiment.exp_name, job, secrets.token_hex(4))
    return re.sub(r"[^\w.-]", "_", "-".join(words), flags=re.ASCII).lstrip("_.-")


def _mounts(request: LaunchRequest) -> Iterator[Mount]:
    """What has to be inside for the same command to work there, at the same paths."""
    shipped = request.backend.presets
    files = [file.absolute() for file in request.experiment.files if not file.is_relative_to(shipped)]
    named = [path.absolute() for path in (*request.paths, *filter(None, [request.primusfile]))]
    run = request.experiment.folder.absolute()
    for path in (_repository(Path.cwd()), *(file.parent for file in files), *named, next(_existing(run))):
        if path == Path("/"):
            raise UserError("the root folder of this machine cannot be mounted: work in a folder of your own")
        if path.exists():
            yield Mount(path, str(path))


def _repository(folder: Path) -> Path:
    """The checkout that a folder belongs to; the folder itself if there is none."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


def _existing(folder: Path) -> Iterator[Path]:
    """What there is of a path, the folder itself or what is above it."""
    return (path for path in (folder, *folder.parents) if path.exists())


def _forwarded(request: LaunchRequest, mounts: Iterable[Mount], asked: Iterable[str]) -> list[str]:
    """The variables that go inside: asked for, named in the experiment, or of a kind that training looks at.

    Of the last kind, paths that are not inside stay outside.
    """
    environ = request.environ
    launch = {
        name for name, node in request.experiment.env.items.items() if isinstance(node, Leaf) and node.value is None
    }
    texts = [*request.argv, *(file.read_text(errors="replace") for file in request.experiment.files)]
    named = {*asked, *launch, *(name for text in texts for name in _REFERENCE.findall(text))}
    named |= {word.partition("=")[0] for word in env.behind(request.argv)}
    usual = {name for name in environ if _FORWARDED.fullmatch(name) and name not in env.OWN}
    folders = [Path(mount.target) for mount in mounts]
    outside = {
        name
        for name in usual - named
        if (value := environ[name]).startswith("/") and not any(Path(value).is_relative_to(f) for f in folders)
    }
    return sorted(name for name in {*named, *usual} - outside if name in environ or name in asked)


def _devices(platform: str) -> Iterable[str]:
    """The device files that training needs, as far as they are there."""
    wanted = {"rocm": (*_ROCM_DEVICES, *_NETWORK_DEVICES), "cuda": _NETWORK_DEVICES}.get(platform, ())
    return [device for device in wanted if Path(device).exists()]


def _there(devices: Iterable[str]) -> Iterator[str]:
    for device in devices:
        if device.startswith("/") and not Path(device.partition(":")[0]).exists():
            raise UserError(f"--device {device}: it is not there")
        yield device


def _groups(platform: str) -> Iterable[str]:
    """The owners of AMD's device files, by number: their names may mean others inside."""
    if platform != "rocm":
        return ()
    files = [Path("/dev/kfd"), *sorted(Path("/dev/dri").glob("renderD*")), *sorted(Path("/dev/dri").glob("card*"))]
    return dict.fromkeys(str(file.stat().st_gid) for file in files if file.exists() and file.stat().st_gid)
