"""``primus preflight`` with real workers on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from primus_preflight.cli import REFUSED

PRIMUS = str(Path(sys.executable).parent / "primus")


def start(folder, *words, **environ):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_")}
    own = {"PRIMUS_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen([PRIMUS, *words], cwd=folder, env=kept | own | environ, stdout=pipe, stderr=pipe, text=True)


def run(folder, *words, **environ):
    child = start(folder, *words, **environ)
    out, err = child.communicate(timeout=200)
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def report(folder):
    (file,) = folder.glob("output/local/me/preflight/attempts/*/preflight.json")
    return json.loads(file.read_text())


def test_two_ranks(tmp_path):
    words = ("preflight", "--nproc", "2", "--comm-sizes-mb", "1", "--tolerance", "0.99", "--free-disk-gb", "0")
    result = run(tmp_path, *words, "--dump-path", "out", "--report-file-name", "mine")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "nothing is wrong" in result.stdout
    found = report(tmp_path)
    assert [set(rank["rates"]) for rank in found["ranks"]] == [{"gemm", "copy"}] * 2
    assert {(row["test"], row["bytes"]) for row in found["collectives"]} == {
        (test, size) for test in ("intra-allreduce", "intra-alltoall") for size in (8, 2**20)
    }
    assert json.loads((tmp_path / "out/mine.json").read_text()) == found
    assert (tmp_path / "out/mine.txt").read_text().startswith("node")
    assert not list((tmp_path / "output/local/me/preflight").glob(".preflight-*"))


def test_what_is_wrong_gives_exit_code_3(tmp_path):
    result = run(tmp_path, "preflight", "--host", "--expected-gpus", "8")
    assert result.returncode == 3
    assert "0 GPUs are visible, not 8" in result.stdout
    assert not report(tmp_path)["ranks"][0]["rates"]


def test_dry_run_and_wrong_options(tmp_path):
    dry = run(tmp_path, "direct", "--nproc", "2", "--", "preflight", "--quick", "--dry-run")
    assert dry.returncode == 0
    assert "quick: true" in dry.stdout
    assert not (tmp_path / "output").exists()
    wrong = run(tmp_path, "preflight", "--tests", "gem")
    assert wrong.returncode == 2
    assert "did you mean 'gemm'" in wrong.stderr
    assert run(tmp_path, "preflight", "--host", "--quick").returncode == 2
    assert run(tmp_path, "preflight", "--comm-sizes-mb", "1,x").returncode == 2


@pytest.mark.parametrize("option", REFUSED)
def test_old_options_are_refused_by_name(tmp_path, option):
    words = [option, "1"] if option.endswith(("-sizes", "-sec")) else [option]
    result = run(tmp_path, "preflight", *words)
    assert result.returncode == 2
    assert result.stderr == f"primus: {option} is no longer there: {REFUSED[option]}\n"


@pytest.mark.slow
def test_two_nodes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("preflight", "--nnodes", "2", "--nproc", "1", "--master-addr", "127.0.0.2", "--master-port", port)
    words += ("--tolerance", "0.99", "--free-disk-gb", "0", "--comm-sizes-mb", "1", "--ring-p2p-sizes-mb", "1")
    other = start(tmp_path, *words, "--node-rank", "1")
    result = run(tmp_path, *words, "--node-rank", "0")
    out, err = other.communicate(timeout=60)
    assert (result.returncode, other.returncode) == (0, 0), result.stderr + err + out
    found = report(tmp_path)
    host = socket.gethostname()
    assert [rank["host"] for rank in found["ranks"]] == [f"{host}/0", f"{host}/1"]
    assert abs(found["clocks"][f"{host}/1"]) < 1
    assert {row["test"] for row in found["collectives"]} == {
        "inter-allreduce",
        "inter-alltoall",
        "inter-p2p",
        "inter-ring-p2p",
    }
