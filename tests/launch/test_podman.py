"""Training in real containers. The image has no programs: it takes them, and this Python, from the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import need
from podman_store import IMAGE, REPOSITORY, container_options
from slurm_cluster import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.podman]
TRAIN = ("--", "train", "pretrain", "--config", "toy.yaml")
FOR_EVER = ("--steps", "5000", "--seconds", "0.02")


@pytest.fixture
def options(podman) -> list[str]:
    return [*container_options(), "--env", "SHELL_API_KEY"]


def test_a_run_in_a_container(desk, options):
    desk.more["FROM_SHELL"] = "x"
    words = (
        "--nproc",
        "2",
        "--collective",
        "--steps",
        "3",
        "--message",
        "a 'b' \"c\" $HOME; é\n",
        "api_key=sekret-argv",
    )
    done = desk.run("container", *options, "--env", "BY_HAND=of the line", *TRAIN, *words)
    assert done.returncode == 0, done.stderr
    attempt = desk.attempt()
    assert "step 3/3" in done.stdout
    assert json.loads((attempt / "result.json").read_text())["exit_code"] == 0
    assert json.loads((attempt / "worker.json").read_text())["config"]["message"] == words[-2]
    environ = json.loads((attempt / "logs/rank-1.log").read_text().partition("environ ")[2].splitlines()[0])
    assert environ == {
        "FROM_FILE": "of the file",
        "BY_HAND": "of the line",
        "TOY_DEFAULT": "of the plugin",  # the image has another
        "OMP_NUM_THREADS": "1",
        "secrets arrived": True,
    }
    about = json.loads((attempt / "run.json").read_text())
    assert about["launcher"]["name"] == "container"
    assert about["host"]["pid"] != 1
    texts = [done.stdout, done.stderr, *(file.read_text() for file in attempt.rglob("*") if file.is_file())]
    assert not [text for text in texts if "sekret" in text]


def test_the_printed_plan_does_the_same(desk, options):
    printed = desk.run("container", *options, "--dry-run", *TRAIN, "--steps", "2")
    assert printed.returncode == 0, printed.stderr
    assert not desk.home.exists()
    done = subprocess.run(
        ["bash"], input=printed.stdout, cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout


def test_a_look_at_the_machine_from_inside(desk, options):
    done = desk.run("container", *options, "--", "preflight", "--nproc", "2", "--quick", "--tolerance", "0.99")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is wrong" in done.stdout


def test_who_failed_is_told_once_and_the_exit_code_comes_through(desk, options):
    done = desk.run("container", *options, *TRAIN, "--bad_rank", "0")
    assert done.returncode == 1
    assert done.stderr.count("rank 0 of 1 failed first") == 1
    assert "seq_len 128 is not divisible by cp 3" in done.stderr
    assert json.loads((desk.attempt() / "result.json").read_text())["root_cause"].startswith("rank 0 of 1 failed")
    done = desk.run("container", *options, *TRAIN, "--bad_rank", "0", "--bad_way", "environment")
    assert done.returncode == 3


def test_a_hang_inside_is_told_outside(desk, options):
    hang = ("--bad_rank", "0", "--bad_way", "hang", "--hang-timeout", "15")
    done = desk.run("container", *options, *TRAIN, *hang)
    assert done.returncode == 4, done.stderr
    assert "hang: rank 0 " in done.stderr
    assert json.loads((desk.attempt() / "result.json").read_text())["root_cause"].startswith("hang: ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--image", "localhost/nowhere:1", "--pull", "never"), "podman ended with exit code 125 before any rank"),
        (("--primus", "/nowhere/primus"), "podman ended with exit code 127 before any rank"),
    ],
)
def test_a_container_that_does_not_start_is_a_fault_of_the_environment(desk, options, more, message):
    done = desk.run("container", *options, *more, *TRAIN)
    assert done.returncode == 3
    assert message in done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(desk, options, podman, how):
    child = desk.start("container", *options, *TRAIN, *FOR_EVER)
    wait_for(desk.at_work)
    (name,) = podman.containers()
    assert name.startswith("primus-toy-")
    child.send_signal(how)
    child.communicate(timeout=60)
    assert child.returncode == (-9 if how == signal.SIGKILL else 1)
    wait_for(lambda: not podman.containers(), 30)


def test_nothing_is_left_when_the_client_is_killed(desk, options, podman):
    child = desk.start("container", *options, *TRAIN, *FOR_EVER)
    wait_for(desk.at_work)
    (client,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(client), signal.SIGKILL)
    began = time.monotonic()
    child.communicate(timeout=60)
    assert child.returncode == 1
    assert time.monotonic() - began < 20
    assert podman.containers() == []


def test_docker_without_a_daemon_of_its_own(desk, options, podman):
    need("docker")
    socket = f"unix://{podman.folder}/docker.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time", "0", socket], env=desk.environ)
    try:
        wait_for((podman.folder / "docker.sock").exists)
        desk.more["DOCKER_HOST"] = socket
        files, processes = (subprocess.check_output(["bash", "-c", f"ulimit -H{x}"], text=True).strip() for x in "nu")
        most = Path("/proc/sys/kernel/pid_max").read_text().strip()
        limits = (f"nofile={files}", f"nproc={min(int(most), int(processes)) if processes.isdecimal() else most}")
        words = [word for limit in (*limits, "memlock=65536", "stack=8388608") for word in ("--ulimit", limit)]
        done = desk.run("container", *options, "--engine", "docker", *words, *TRAIN, "--steps", "2")
        assert done.returncode == 0, done.stderr
        assert "step 2/2" in done.stdout
        child = desk.start("container", *options, "--engine", "docker", *words, *TRAIN, *FOR_EVER)
        wait_for(lambda: desk.at_work(2))
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        wait_for(lambda: not podman.containers(), 30)
    finally:
        service.terminate()
        service.wait()


def test_bubblewrap_where_no_engine_is(desk):
    need("bwrap")
    prefix = [word for folder in (REPOSITORY, sys.base_prefix) for word in ("--volume", str(folder))]
    words = ("--engine", "bwrap", "--primus", str(Path(sys.executable).with_name("primus")))
    done = desk.run("container", *words, *prefix, *TRAIN, "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout


def test_limits_are_those_that_were_asked_for(desk, podman):
    show = "import resource, os; print(resource.getrlimit(resource.RLIMIT_NOFILE), os.statvfs('/dev/shm').f_blocks)"
    python = str(Path(sys.executable))
    words = ("--shm-size", "64m", "--ulimit", "nofile=500:600", "--memory", "2g", "--env", "A=b c", "--image", IMAGE)
    printed = desk.run("container", *container_options(), *words, "--dry-run", *TRAIN)
    assert printed.returncode == 0, printed.stderr
    plan, _, _ = printed.stdout.partition(f" {IMAGE} ")
    script = f"{plan} {IMAGE} {python} -c {json.dumps(show)}\n)"
    done = subprocess.run(["bash"], input=script, env=desk.environ, cwd=desk.folder, capture_output=True, text=True)
    assert done.stdout == "(500, 600) 16384\n", done.stderr
