"""Names and sizes are those that drivers report; the tool is a script that prints them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from primus_core.platforms.cuda import detect

TWO = "GPU-11aa, 143771, NVIDIA H200, 9.0\nGPU-22bb, 143771, NVIDIA H200, 9.0\n"


@pytest.fixture
def tool(tmp_path):
    """Put an ``nvidia-smi`` on a path of its own; gives the environment."""

    def make(script: str) -> dict[str, str]:
        file = tmp_path / "bin/nvidia-smi"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return {"PATH": str(file.parent)}

    return make


def saying(text: str) -> str:
    return f"printf %s {shlex.quote(text)}"


def test_devices_with_memory_arch_and_peak(tool):
    first, second = detect(tool(saying(TWO)))
    assert first == second
    assert (first.name, first.arch, first.memory) == ("NVIDIA H200", "sm_90", 143771 * 2**20)
    assert first.peak_flops["bf16"] == pytest.approx(989.4e12)


@pytest.mark.parametrize(
    ("line", "arch", "bf16"),
    [
        ("GPU-1, 81559, NVIDIA H100 80GB HBM3, 9.0", "sm_90", 989.4e12),
        ("GPU-1, 183359, NVIDIA B200, 10.0", "sm_100", 2250e12),
        ("GPU-1, 97887, NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0", "sm_120", None),
    ],
)
def test_peaks_are_known_by_name_or_not_at_all(tool, line, arch, bf16):
    (device,) = detect(tool(saying(line)))
    assert (device.arch, device.peak_flops.get("bf16")) == (arch, bf16)


def test_memory_may_be_unknown(tool):
    (device,) = detect(tool(saying("GPU-1, [N/A], NVIDIA GB10, 12.1")))
    assert device.memory is None


def test_old_drivers_do_not_know_the_capability(tool):
    script = f"""case "$1" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
{saying("GPU-1, 16160, Tesla V100-SXM2-16GB")}"""
    (device,) = detect(tool(script))
    assert (device.name, device.arch) == ("Tesla V100-SXM2-16GB", "")


def test_visible_devices(tool):
    environ = tool(saying(TWO + "GPU-33cc, 81559, NVIDIA H100 80GB HBM3, 9.0\n"))
    assert [d.name for d in detect(environ | {"CUDA_VISIBLE_DEVICES": "2,0"})] == [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H200",
    ]
    assert [d.name for d in detect(environ | {"CUDA_VISIBLE_DEVICES": "GPU-33"})] == ["NVIDIA H100 80GB HBM3"]
    assert detect(environ | {"CUDA_VISIBLE_DEVICES": ""}) == ()
    (slice_,) = detect(environ | {"CUDA_VISIBLE_DEVICES": "MIG-5c21f8a4"})
    assert (slice_.name, slice_.memory, dict(slice_.peak_flops)) == ("NVIDIA H200 (MIG)", None, {})


def test_without_tool_and_driver_there_is_nothing(tmp_path):
    assert detect({"PATH": str(tmp_path)}, tmp_path) == ()


@pytest.mark.parametrize("script", [None, "echo 'NVIDIA-SMI has failed'; exit 9"])
def test_the_drivers_files_stand_in_for_the_tool(tool, tmp_path, script):
    information(tmp_path / "proc/driver/nvidia/gpus/0000:05:00.0/information")
    environ = tool(script) if script else {"PATH": str(tmp_path)}
    (device,) = detect(environ, tmp_path)
    assert (device.name, device.memory) == ("NVIDIA H200", None)
    assert device.peak_flops["fp8"] == pytest.approx(1978.9e12)


def information(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t GPU-11aa\nBus Type: \t PCIe\n")
