"""Variables that training wants on an accelerator: defaults, weaker than all that the user sets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from primus_core.plugins.records import Device, EnvVar

_ROCM: Mapping[str, str] = {
    "GPU_MAX_HW_QUEUES": "2",  # one for computing, one for communication
    "HSA_ENABLE_SDMA": "1",
    "HSA_NO_SCRATCH_RECLAIM": "1",  # scratch memory is kept between kernels
    "HSA_KERNARG_POOL_SIZE": "8388608",
    "NCCL_CROSS_NIC": "0",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_PXN_DISABLE": "1",
    "RCCL_MSCCL_ENABLE": "0",
    "RCCL_MSCCLPP_ENABLE": "0",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
}
_ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "gfx942": {"HSA_KERNARG_POOL_SIZE": "12582912"},
    "gfx950": {"HSA_KERNARG_POOL_SIZE": "12582912", "RCCL_WARP_SPEED_AUTO": "0"},
}
_CUDA: Mapping[str, str] = {"TORCH_NCCL_HIGH_PRIORITY": "1"}
_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
_ROCM_CACHES = {**_CACHES, "MIOPEN_USER_DB_PATH": "miopen", "MIOPEN_CUSTOM_CACHE_DIR": "miopen"}


def defaults(platform: str, devices: Sequence[Device]) -> Iterator[EnvVar]:
    """The variables for a platform and the architecture of its first device; none for the CPU.

    Caches of compiled kernels are on this machine's own disk, one for each architecture: home folders are often
    shared, slow, and mixed.
    """
    if platform not in ("rocm", "cuda"):
        return
    arch = devices[0].arch if devices else ""
    general = _ROCM if platform == "rocm" else _CUDA
    special = _ARCHITECTURES.get(arch, {})
    for name, value in {**general, **special}.items():
        yield EnvVar(name=name, value=value, origin=f"{platform} {arch}" if name in special else platform)
    cache = Path(tempfile.gettempdir()) / f"primus-{os.getuid()}" / (arch or platform)
    for name, folder in (_ROCM_CACHES if platform == "rocm" else _CACHES).items():
        yield EnvVar(name=name, value=str(cache / folder), origin=f"{platform}: on this machine's own disk")
