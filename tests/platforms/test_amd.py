"""What AMD's tools were recorded to say, shortened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from primus_core.platforms import rocm
from primus_core.platforms.amd import from_amd_smi, from_rocminfo

RECORDED = Path(__file__).parent / "recorded"
ASIC = {"market_name": "AMD Instinct MI355X", "device_id": "0x75a3", "target_graphics_version": "gfx950"}
MI355X = {"gpu": 0, "bus": {"bdf": "0000:05:00.0"}, "asic": ASIC, "vram": {"size": {"value": 294896, "unit": "MB"}}}
PARTITION = {"market_name": "AMD Instinct MI350X", "device_id": "0x75a0", "num_compute_units": 128}


@pytest.mark.parametrize(
    ("file", "name", "memory"),
    [
        ("rocminfo-mi300x.txt", "AMD Instinct MI300X", None),
        ("rocminfo-mi325x.txt", "AMD Instinct MI325X", 268419072 * 1024),
    ],
)
def test_rocminfo(file, name, memory):
    ((uuid, device),) = from_rocminfo((RECORDED / file).read_text())
    assert (device.name, device.arch, device.memory) == (name, "gfx942", memory)
    assert device.peak_flops["bf16"] == pytest.approx(1307.4e12)
    assert uuid.startswith("GPU-")


@pytest.mark.parametrize("shape", [[MI355X], {"gpu_data": [MI355X]}], ids=["26.2.0", "26.2.1"])
def test_amd_smi_in_both_shapes(shape):
    ((_, device),) = from_amd_smi(json.dumps(shape))
    assert (device.name, device.arch, device.memory) == ("AMD Instinct MI355X", "gfx950", 294896 * 2**20)
    assert device.peak_flops["fp8"] == pytest.approx(5033.2e12)


def test_amd_smi_of_a_partition():
    ((_, device),) = from_amd_smi(json.dumps([{"asic": PARTITION}]))
    assert device.peak_flops["bf16"] == pytest.approx(2306.9e12 / 2)


def test_amd_smi_of_a_product_that_is_not_known():
    ((_, device),) = from_amd_smi(
        json.dumps([{"asic": {"market_name": "AMD Next", "device_id": "0x1"}, "vram": "N/A"}])
    )
    assert (device.name, device.memory, dict(device.peak_flops)) == ("AMD Next", None, {})


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose topology cannot be read, with tools that are scripts."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    bin = tmp_path / "bin"
    bin.mkdir()

    def tool(name: str, script: str) -> dict[str, str]:
        (bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin / name).chmod(0o755)
        return {"PATH": f"{bin}:/usr/bin:/bin"}

    return tmp_path, tool


def test_tools_stand_in_for_the_topology(machine, monkeypatch):
    root, tool = machine
    tool("amd-smi", "echo 'WARNING: nothing'")
    environ = tool("rocminfo", f"cat {RECORDED / 'rocminfo-mi300x.txt'}")
    (device,) = rocm.detect(environ, root)
    assert device.name == "AMD Instinct MI300X"
    assert rocm.detect(environ | {"ROCR_VISIBLE_DEVICES": "-1"}, root) == ()
    monkeypatch.setattr("primus_core.platforms.amd._SECONDS", 0.2)
    tool("amd-smi", "sleep 5")
    assert len(rocm.detect(environ, root)) == 1
    tool("rocminfo", "exit 1")
    assert rocm.detect(environ, root) == ()
