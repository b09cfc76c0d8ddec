"""Real podman and real Slurm, and an experiment that trains on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import podman_store
import pytest
import slurm_cluster
from needs import need
from podman_store import Store
from slurm_cluster import Cluster

TOY = Path(__file__).parents[1] / "toy"
EXPERIMENT = """\
work_group: group
user_name: user
exp_name: toy
env: {FROM_FILE: of the file, TOY_TOKEN: sekret-of-the-file}
modules:
  pre_trainer:
    framework: toy
    model: tiny
    overrides:
      api_key: sekret-of-config
"""


@dataclass(frozen=True)
class Desk:
    """A working folder with an experiment, and the environment that its commands get."""

    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_", "SLURM_"))}
        own = {"PYTHONPATH": str(TOY), "PRIMUS_PLATFORM": "cpu", "SHELL_API_KEY": "sekret-of-the-shell"}
        return kept | own | {"OMP_NUM_THREADS": "1"} | self.more

    @property
    def home(self) -> Path:
        return self.folder / "output/group/user/toy"

    def attempt(self, number: int = 1) -> Path:
        return self.home / f"attempts/{number:04}"

    def start(self, *words: str, **how: object) -> subprocess.Popen[str]:
        pipes: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [str(Path(sys.executable).with_name("primus")), *words]
        child = subprocess.Popen(command, cwd=self.folder, env=self.environ, **pipes | how)
        self.children.append(child)
        return child

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        child = self.start(*words)
        out, err = child.communicate(timeout=240)
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    def at_work(self, number: int = 1, ranks: int = 1) -> bool:
        """Whether all ranks are in their steps."""
        files = (self.attempt(number) / "ranks").glob("*.json")
        return [json.loads(file.read_text() or "{}").get("phase") for file in files] == ["forward"] * ranks


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "toy.yaml").write_text(EXPERIMENT)
    desk = Desk(tmp_path)
    yield desk
    for child in desk.children:
        child.terminate()  # where a test failed; of one that has ended nothing is asked
        child.communicate(timeout=60)


@pytest.fixture(scope="session")
def podman_here() -> Iterator[Store]:
    need("podman", "runc")
    folder = Path(tempfile.mkdtemp(prefix="podman-"))
    store = podman_store.make(folder)
    yield store
    store.remove()
    shutil.rmtree(folder)


@pytest.fixture
def podman(podman_here: Store, desk: Desk) -> Iterator[Store]:
    """Podman with an image; none of its containers may be left after the test."""
    desk.more.update(podman_here.environ)
    yield podman_here
    assert podman_here.containers() == []


@pytest.fixture(scope="session")
def slurm_here() -> Iterator[Cluster]:
    need("slurmctld", "slurmd", "munged", "srun")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = slurm_cluster.start(folder)
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_here: Cluster, desk: Desk) -> Iterator[Cluster]:
    """A cluster of two nodes without jobs; no rank may live on after the test."""
    desk.more.update(slurm_here.environ)
    yield slurm_here
    slurm_here.clear()
    assert not workers(desk.folder)


def workers(folder: Path) -> list[int]:
    """Processes of attempts below a folder."""
    mark = f"PRIMUS_ATTEMPT={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found
