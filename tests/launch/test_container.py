"""Plans of the container launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import request

from primus_core.cli.main import main
from primus_core.errors import EnvironmentFault, UserError
from primus_core.launch.container import engines, launcher
from primus_core.launch.container.box import Mount, outermost
from primus_core.launch.plan import Plan

MANY = ("volume", "device", "ulimit", "group_add", "cap_add", "security_opt", "env")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A working folder; root, with limits that may be raised, and nothing of AMD's or Mellanox's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(engines, "_may_raise_limits", lambda: True)
    monkeypatch.setattr(engines, "_hard", lambda number: "1000:1000")
    monkeypatch.setattr(launcher, "_devices", lambda platform: ["/dev/kfd", "/dev/dri"] if platform == "rocm" else [])
    monkeypatch.setattr(launcher, "_groups", lambda platform: ["44"] if platform == "rocm" else [])
    monkeypatch.setattr("secrets.token_hex", lambda count: "1234abcd")
    monkeypatch.setattr(os, "getpid", lambda: 77)
    return tmp_path


def make(engine: str, *argv: str, options: dict[str, Any] | None = None, **more: Any) -> Plan:
    given = {**dict.fromkeys(MANY, ()), "engine": engine, **(options or {})}
    return launcher.plan(request(*argv, options=given, **more))


def text(plan: Plan, place: Path) -> str:
    return " ".join(plan.argv).replace(str(place), "HERE")


NAMES = "--env PRIMUS_ATTEMPT --env PRIMUS_OUTER --env PRIMUS_LIFELINE --env PRIMUS_SHELL_NAMES"
INNER = "primus direct -- train pretrain --config x.yaml"


def test_docker_with_amd_gpus(place):
    assert text(make("docker", options={"image": "img"}, platform="rocm"), place) == (
        "docker run --rm --interactive --name primus-e-77-1234abcd --label primus=/runs/0001 --workdir HERE "
        "--network host --ipc host --volume HERE:HERE --device /dev/kfd --device /dev/dri --group-add 44 "
        "--cap-add SYS_PTRACE --security-opt seccomp=unconfined --ulimit memlock=-1:-1 "
        f"--ulimit stack=67108864:67108864 --ulimit nofile=1048576:1048576 {NAMES} img {INNER}"
    )


def test_docker_with_nvidia_gpus_for_a_user(place, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    words = text(make("docker", options={"image": "img"}, platform="cuda"), place)
    assert " --gpus all --user 1000:100 --env HOME=/tmp " in words


def test_podman_with_nvidia_gpus_for_a_user(place, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    words = text(make("podman", options={"image": "img"}, platform="cuda"), place)
    assert " --userns keep-id --device nvidia.com/gpu=all " in words
    assert (
        " --ulimit nofile=1000:1000 --ulimit nproc=1000:1000 --ulimit memlock=-1:-1 --ulimit stack=1000:1000 " in words
    )


@pytest.mark.parametrize(("platform", "flag"), [("rocm", "--rocm "), ("cuda", "--nv "), ("cpu", "")])
def test_apptainer(place, platform, flag):
    (place / "data").mkdir()
    options = {"image": "docker://img", "volume": ("data:/data:ro",), "cpus": "8"}
    assert text(make("apptainer", options=options, platform=platform), place) == (
        f"apptainer exec --no-home --pwd HERE {flag}--bind HERE:HERE --bind HERE/data:/data:ro --cpus 8 docker://img "
        + INNER
    )


def test_bubblewrap(place):
    assert text(make("bwrap"), place) == (
        "bwrap --ro-bind / / --dev-bind /dev /dev --proc /proc --ro-bind /sys /sys --tmpfs /tmp --die-with-parent "
        f"--unshare-pid --bind HERE HERE --chdir HERE -- {INNER}"
    )


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("docker", {}, "no image: give --image, set DOCKER_IMAGE, or write launch.container.image"),
        ("docker", {"image": "i", "shm_size": "1g", "ipc": "host"}, "--shm-size sets the shared memory of a container"),
        ("apptainer", {"image": "i", "shm_size": "1g", "user": "1"}, "apptainer cannot do --shm-size, --user"),
        ("bwrap", {"memory": "1g"}, "bwrap cannot do --memory"),
        ("bwrap", {"image": "nowhere"}, "bwrap takes the root folder of a system"),
        ("docker", {"image": "i", "volume": ("nowhere:/x",)}, "--volume nowhere:/x: .*/nowhere is not there"),
        ("docker", {"image": "i", "volume": (".:/x:ro:z",)}, "write HOST, HOST:CONTAINER or HOST:CONTAINER:ro"),
        ("docker", {"image": "i", "device": ("/dev/nothing",)}, "--device /dev/nothing: it is not there"),
        ("docker", {"image": "i", "env": ("NOWHERE",)}, "--env NOWHERE: your shell does not set it"),
    ],
)
def test_what_cannot_be_done_is_said(engine, options, message):
    with pytest.raises(UserError, match=message):
        make(engine, options=options)


def test_the_image_comes_from_option_variable_or_file():
    launch, environ = {"container": {"image": "file", "cpus": "2"}}, {"DOCKER_IMAGE": "variable"}
    assert "file" in make("docker", launch=launch).argv
    assert "variable" in make("docker", launch=launch, environ=environ).argv
    words = make("docker", launch=launch, environ=environ, options={"image": "option"}).argv
    assert "option" in words
    assert words[words.index("--cpus") + 1] == "2"


def test_lists_of_the_file_and_of_the_line_add_up(place):
    (place / "a").mkdir()
    (place / "b").mkdir()
    options = {"image": "i", "volume": ("b:/b",), "ulimit": ("nofile=9",), "shm_size": "1g"}
    words = text(make("docker", launch={"container": {"volume": ["a:/a"]}}, options=options), place)
    assert "--volume HERE/a:/a --volume HERE/b:/b" in words
    assert "--ulimit nofile=9 " in words
    assert "--ipc" not in words


def test_options_that_primus_does_not_know_go_on():
    assert "--pull always" in " ".join(make("docker", options={"image": "i", "extra": ("--pull", "always")}).argv)


def test_secrets_stand_on_no_command_line():
    argv = (
        "train",
        "pretrain",
        "--config",
        "x",
        "api_key=se1",
        "--hf-token",
        "se2",
        "--env",
        "A_TOKEN=se3",
        "--env=B_KEY=se4",
    )
    plan = make("docker", *argv, options={"image": "i", "env": ("C_SECRET=se5", "D_KEY")}, environ={"D_KEY": "se6"})
    assert not [word for word in plan.argv if re.search(r"se\d", word)]
    values = {var.name: var.value for var in plan.env if var.secret}
    assert values == {
        "PRIMUS_SECRET_API_KEY": "se1",
        "PRIMUS_SECRET_HF_TOKEN": "se2",
        "A_TOKEN": "se3",
        "B_KEY": "se4",
        "C_SECRET": "se5",
        "D_KEY": "se6",
    }
    assert all(name in plan.argv for name in values)
    inner = plan.argv[plan.argv.index("primus") :]
    assert inner[:6] == ("primus", "direct", "--env", "C_SECRET", "--env", "D_KEY")
    assert inner[-6:] == (
        "api_key=${PRIMUS_SECRET_API_KEY}",
        "--hf-token",
        "${PRIMUS_SECRET_HF_TOKEN}",
        "--env",
        "A_TOKEN",
        "--env=B_KEY",
    )


def test_which_variables_go_inside(place):
    environ = {
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "x",
        "HF_HOME": "/elsewhere/cache",
        "TRITON_CACHE_DIR": str(place / "cache"),
        "PRIMUS_OUTER": "srun",
        "SLURM_JOB_ID": "5",
        "EDITOR": "vi",
        "NAMED": "1",
        "IN_A_VALUE": "2",
        "PATH": "/bin",
    }
    plan = make("docker", "train", "a=${IN_A_VALUE}", options={"image": "i"}, env={"NAMED": None}, environ=environ)
    (shell,) = [var.value for var in plan.env if var.name == "PRIMUS_SHELL_NAMES"]
    assert shell.split(",") == ["HF_TOKEN", "IN_A_VALUE", "NAMED", "NCCL_DEBUG", "SLURM_JOB_ID", "TRITON_CACHE_DIR"]


def test_an_inner_launcher_stays():
    plan = make("docker", "direct", "--nproc", "2", "--", "train", options={"image": "i", "env": ("A=1",)}, nested=True)
    assert plan.argv[-8:] == ("primus", "direct", "--env", "A", "--nproc", "2", "--", "train")


@pytest.mark.parametrize(
    ("argv", "more", "ranks"),
    [
        (("train",), {}, 1),
        (("train",), {"environ": {"GPUS_PER_NODE": "8"}}, 8),
        (("train", "--nproc-per-node=4"), {"environ": {"GPUS_PER_NODE": "8", "NNODES": "2"}}, 8),
        (("direct", "--nnodes", "2", "--", "train"), {}, None),
    ],
)
def test_ranks_are_known_if_they_can_be(argv, more, ranks):
    assert make("docker", *argv, options={"image": "i"}, **more).ranks == ranks


def test_mounts_within_mounts_are_left_out(tmp_path):
    inner, other = Mount(tmp_path / "a/b", str(tmp_path / "a/b")), Mount(tmp_path / "a/b", "/b")
    outer, read_only = Mount(tmp_path / "a", str(tmp_path / "a")), Mount(tmp_path / "a/c", str(tmp_path / "a/c"), "ro")
    assert outermost([inner, outer, other, read_only, outer]) == (outer, other, read_only)


def test_paths_with_colons_and_commas(place):
    (place / "a:b").mkdir()
    (place / "c,d").mkdir()
    assert engines._bind(Mount(place / "a:b", "/x", "ro")) == (
        "--mount",
        f"type=bind,source={place}/a:b,target=/x,readonly",
    )
    assert engines._bind(Mount(place / "c,d", "/x")) == ("--volume", f"{place}/c,d:/x")
    with pytest.raises(UserError, match="both"):
        engines._bind(Mount(place / "a:b", "/x,y"))


def test_which_program_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "_DOCKER_SOCKETS", ())

    def path(*names: str) -> dict[str, str]:
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name in names:
            (folder / name).touch(0o755)
        return {"PATH": str(folder)}

    assert engines.choose("bwrap", {}) == "bwrap"
    both = path("docker", "podman")
    assert engines.choose(None, both) == "podman"
    assert engines.choose(None, both | {"DOCKER_HOST": "unix:///x"}) == "docker"
    assert engines.choose(None, path("docker")) == "docker"
    assert engines.choose(None, path("bwrap", "apptainer")) == "apptainer"
    with pytest.raises(EnvironmentFault, match="none of docker, podman, apptainer, bwrap"):
        engines.choose(None, path("nothing"))


def test_other_peoples_containers_are_left_alone(capsys):
    assert main(["container", "--clean", "--", "train", "pretrain", "--config", "x.yaml"]) == 2
    assert "other people's" in capsys.readouterr().err


SEED = """
export DATA_PATH=./data
GPUS_PER_NODE=8 HF_TOKEN=sekret-token \\
primus-cli container --volume "$DATA_PATH:$DATA_PATH" \\
  --env DATA_PATH \\
  -- train pretrain --config toy.yaml {flag}

primus-cli slurm srun -N 2 {flag} \\
  -- container --volume "$DATA_PATH:$DATA_PATH" \\
  --env DATA_PATH \\
  -- train pretrain --config toy.yaml

primus-cli container {flag} -- train pretrain \\
  --config toy.yaml \\
  --collective true --steps 10
"""


def test_the_commands_of_the_guides_work_to_the_letter(desk):
    (desk.folder / "data").mkdir()
    desk.more["DOCKER_IMAGE"] = "rocm/primus:v25.10"
    (desk.folder / "docker").touch(0o755)
    desk.more["PATH"] = f"{Path(sys.executable).parent}:{desk.folder}:{os.environ['PATH']}"
    desk.more["DOCKER_HOST"] = "tcp://nowhere"
    script = SEED.format(flag="--dry-run")
    done = subprocess.run(
        ["bash", "-e"], input=script, env=desk.environ, cwd=desk.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.split("(set -eC")[1:]
    data = desk.folder / "data"
    assert f"--volume {desk.folder}:{desk.folder} " in first
    assert str(data) not in first  # it is within the working folder
    assert "--env DATA_PATH --env GPUS_PER_NODE --env HF_TOKEN " in first
    assert "primus direct --env DATA_PATH -- train pretrain --config toy.yaml" in first
    assert "container --volume ./data:./data --env DATA_PATH -- train" in second
    assert "primus direct -- train pretrain --config toy.yaml --collective true --steps 10\n" in third
    assert "--dry-run" not in done.stdout
    assert "sekret" not in done.stdout
