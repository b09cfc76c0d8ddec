from __future__ import annotations

import pytest

from primus_core.platforms.environment import defaults
from primus_core.plugins.records import Device


def found(platform: str, *archs: str) -> dict[str, str]:
    return {var.name: var.value for var in defaults(platform, [Device(name=arch, arch=arch) for arch in archs])}


def test_processors_need_none():
    assert found("cpu", "x86_64") == {}


@pytest.mark.parametrize(
    ("arch", "pool", "warp"),
    [("gfx942", "12582912", None), ("gfx950", "12582912", "0"), ("gfx1250", "8388608", None)],
)
def test_by_architecture(arch, pool, warp):
    values = found("rocm", *[arch] * 8)
    assert values["HSA_KERNARG_POOL_SIZE"] == pool
    assert values.get("RCCL_WARP_SPEED_AUTO") == warp
    assert values["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert values["NCCL_PXN_DISABLE"] == "1"


def test_nvidia_has_none_of_amds():
    values = found("cuda", "sm_90")
    assert not [name for name in values if name.startswith(("HSA_", "RCCL_", "MIOPEN_"))]
    assert values["TORCH_NCCL_HIGH_PRIORITY"] == "1"


def test_caches_are_apart_by_architecture():
    assert found("rocm", "gfx942")["TRITON_CACHE_DIR"].endswith("/gfx942/triton")
    assert found("cuda", "sm_100")["TRITON_CACHE_DIR"].endswith("/sm_100/triton")
    assert found("rocm")["TRITON_CACHE_DIR"].endswith("/rocm/triton")


def test_each_says_where_it_comes_from():
    origins = {var.name: var.origin for var in defaults("rocm", [Device(name="x", arch="gfx950")])}
    assert origins["RCCL_WARP_SPEED_AUTO"] == "rocm gfx950"
    assert origins["HSA_ENABLE_SDMA"] == "rocm"
