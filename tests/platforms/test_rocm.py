"""Topology files with the values that the kernel driver gives for these GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_core.platforms.rocm import detect, gfx

CPU = {"cpu_cores_count": 26, "simd_count": 0, "gfx_target_version": 0}
MI300X = {"simd_count": 1216, "simd_per_cu": 4, "gfx_target_version": 90402, "vendor_id": 4098, "device_id": 29857}
MI355X = {"simd_count": 1024, "simd_per_cu": 4, "gfx_target_version": 90500, "vendor_id": 4098, "device_id": 30115}
MEMORY = 206142726144


@pytest.fixture
def machine(tmp_path):
    """Write the nodes of a machine; gives its root."""

    def make(*nodes: dict[str, int]) -> Path:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/kfd").touch()
        for number, node in enumerate(nodes):
            folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
            write(folder / "properties", node)
            write(folder / "mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": MEMORY})
        return tmp_path

    return make


def write(file: Path, values: dict[str, int]) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{name} {value}\n" for name, value in values.items()))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90010, "gfx90a"),
        (110000, "gfx1100"),
        (120001, "gfx1201"),
        (120500, "gfx1250"),
    ],
)
def test_names_of_architectures(version, name):
    assert gfx(version) == name


def test_gpus_are_told_apart_by_their_device_id(machine):
    first, second, third = detect({}, machine(CPU, MI300X, MI300X | {"device_id": 29861}, MI355X))
    assert (first.name, first.arch, first.memory) == ("AMD Instinct MI300X", "gfx942", MEMORY)
    assert (second.name, second.arch) == ("AMD Instinct MI325X", "gfx942")
    assert (third.name, third.arch) == ("AMD Instinct MI355X", "gfx950")
    assert first.peak_flops["bf16"] == pytest.approx(1307.4e12)
    assert third.peak_flops["fp8"] == pytest.approx(5033.2e12)


def test_a_partition_has_its_share_of_the_peak(machine):
    (device,) = detect({}, machine(MI300X | {"simd_count": 1216 // 8, "num_xcc": 1}))
    assert device.peak_flops["bf16"] == pytest.approx(1307.4e12 / 8)


def test_an_unknown_gpu_goes_by_its_architecture(machine):
    (device,) = detect({}, machine({"simd_count": 1024, "gfx_target_version": 120500, "device_id": 1}))
    assert (device.name, dict(device.peak_flops)) == ("AMD gfx1250", {})


def test_nodes_count_as_numbers(machine):
    nodes = [CPU] * 2 + [MI300X] * 8 + [MI355X]
    assert detect({}, machine(*nodes))[-1].arch == "gfx950"


@pytest.mark.parametrize(
    ("environ", "archs"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["gfx950"]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, ["gfx950", "gfx942"]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, ["gfx950"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["gfx950"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00009000000000b2"}, ["gfx950"]),
    ],
)
def test_visible_devices(machine, environ, archs):
    root = machine(CPU, MI300X | {"unique_id": 0x9000000000A1}, MI355X | {"unique_id": 0x9000000000B2})
    assert [device.arch for device in detect(environ, root)] == archs


def test_a_container_without_the_device_file_has_none(machine):
    root = machine(MI300X)
    (root / "dev/kfd").unlink()
    assert detect({}, root) == ()
