"""A podman with a store of its own, and an image that takes its programs from this machine."""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from needs import refuse

IMAGE = "localhost/primus-test:1"
PATH = "/usr/local/bin:/usr/bin:/bin"
IMAGE_VARIABLES = {"PATH": PATH, "TOY_DEFAULT": "of the image", "BY_HAND": "of the image", "FROM_IMAGE": "1"}
REPOSITORY = Path(__file__).parents[2]
_FOLDERS = "usr etc proc sys dev tmp root run var/tmp".split()
_LINKS = ("bin", "lib", "lib64", "sbin")


@dataclass(frozen=True)
class Store:
    """``environ`` makes podman use it."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def podman(self, *words: str, **how: object) -> str:
        """What podman says; raises ``CalledProcessError`` when it fails."""
        own = {"env": os.environ | self.environ, "check": True, "capture_output": True, "timeout": 60}
        return subprocess.run(["podman", *words], **own | how).stdout.decode()

    def containers(self) -> list[str]:
        """The names of all containers, also of those that ended."""
        return self.podman("ps", "--all", "--format", "{{.Names}}").split()

    def remove(self) -> None:
        self.podman("rm", "--all", "--force", "--time", "0")
        self.podman("rmi", "--all", "--force")
        for group in Path("/sys/fs/cgroup").glob("**/libpod_parent"):  # empty ones stay behind with runc
            for inner in sorted(group.glob("**/"), reverse=True):
                inner.rmdir()


def container_options() -> list[str]:
    """What ``primus container`` needs to run this repository's primus in the image."""
    mounts = [f"{REPOSITORY}", "/usr:/usr:ro", f"{sys.base_prefix}:{sys.base_prefix}:ro"]
    words = ["--image", IMAGE, "--engine", "podman", "--primus", str(Path(sys.executable).with_name("primus"))]
    return [*words, *(word for mount in mounts for word in ("--volume", mount)), "--env", "PYTHONPATH"]


def make(folder: Path) -> Store:
    """A store with the image; skips or fails where podman cannot run anything."""
    files, processes = (resource.getrlimit(number)[1] for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = most if processes < 0 else min(processes, most)
    runtime = 'runtime = "runc"' if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin") else ""
    (folder / "containers.conf").write_text(
        "[containers]\n"
        f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
        'log_driver = "none"\n'
        "[engine]\n"
        f'{runtime}\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    store = Store(folder)
    changes = [word for name, value in IMAGE_VARIABLES.items() for word in ("--change", f'ENV {name}="{value}"')]
    store.podman("import", *changes, "-", IMAGE, input=_skeleton())
    try:
        store.podman("run", "--rm", "--network", "host", "--volume", "/usr:/usr:ro", IMAGE, "/bin/true")
    except subprocess.CalledProcessError as error:
        refuse(f"podman runs no container here: {error.stderr.decode()}")
    return store


def _skeleton() -> bytes:
    """A root folder without programs, as tar."""
    users = {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n"}
    text = {**users, "etc/nsswitch.conf": "hosts: files dns\n"}
    content = {name: value.encode() for name, value in text.items()}
    content["etc/ld.so.cache"] = Path("/etc/ld.so.cache").read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if "tmp" in name else 0o755
            archive.addfile(entry)
        for name in _LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
