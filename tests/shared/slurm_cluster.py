"""A Slurm of its own on this machine: one controller, and a slurmd for each of its nodes."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NODES = ("n1", "n2")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
SlurmdParameters=config_overrides
PlugStackConfig=/dev/null
ReturnToService=2
KillWait=3
SlurmdTimeout=15
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. ``environ`` makes Slurm's commands, and primus, use it."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        # All nodes are this machine, under names that nobody can look up.
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.2"}

    def call(self, *words: str) -> str:
        """What one of Slurm's commands says."""
        environ = os.environ | self.environ | {"PATH": f"{os.environ['PATH']}:{SBIN}"}
        done = subprocess.run(words, env=environ, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job."""
        words = self.call("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, *states: str, seconds: float = 90) -> dict[str, str]:
        """The job, as soon as it is in one of the states."""
        return wait_for(lambda: job if (job := self.job(number))["JobState"] in states else None, seconds)

    def clear(self) -> None:
        """Cancel all jobs and wait until they are gone and both nodes are idle."""
        self.call("scancel", "--user", getpass.getuser())
        wait_for(lambda: not self.call("squeue", "--noheader"), 30)
        wait_for(lambda: set(self.call("sinfo", "-hN", "-o%T").split()) == {"idle"}, 40)

    def stop(self) -> None:
        pids = [int(file.read_text()) for file in self.folder.glob("*.pid")]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(AssertionError):
                wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5)


def start(folder: Path) -> Cluster:
    """Start it all; ``folder`` should have a short path, for sockets."""
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    ports = free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 State=UNKNOWN"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    configuration = CONFIGURATION.format(user=getpass.getuser(), folder=folder, ports=ports, nodes=nodes)
    (folder / "slurm.conf").write_text(configuration)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    cluster = Cluster(folder)
    files = {"key-file": key, "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
    files["seed-file"] = "munge.seed"
    cluster.call("munged", "--force", *(f"--{option}={folder / name}" for option, name in files.items()))
    cluster.call("slurmctld", "-c", "-f", str(folder / "slurm.conf"))
    for node in NODES:
        cluster.call("slurmd", "-N", node, "-f", str(folder / "slurm.conf"))
    wait_for(lambda: set(cluster.call("sinfo", "-hN", "-o%T").split()) == {"idle"}, 20)
    return cluster


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for[T](look: Callable[[], T | None], seconds: float = 120) -> T:
    """What ``look`` gives, as soon as it gives something."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"nothing came within {seconds} seconds")
