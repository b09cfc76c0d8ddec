"""Peak dense matrix throughput of accelerators, in FLOP/s per dtype, from their vendors' data sheets.

Without structured sparsity; boost clock. Figures that a data sheet gives only with sparsity are halved.
"""

from __future__ import annotations

from collections.abc import Mapping

TERA = 1e12


def _tera(**values: float) -> dict[str, float]:
    return {dtype: value * TERA for dtype, value in values.items()}


_HOPPER_SXM = _tera(bf16=989.4, fp16=989.4, fp8=1978.9, tf32=494.7, fp32=66.9)
_CDNA3 = _tera(bf16=1307.4, fp16=1307.4, fp8=2614.9, tf32=653.7, fp32=163.4)

NVIDIA: Mapping[str, Mapping[str, float]] = {
    "NVIDIA A100-SXM4-40GB": _tera(bf16=312, fp16=312, tf32=156, fp32=19.5),
    "NVIDIA A100-SXM4-80GB": _tera(bf16=312, fp16=312, tf32=156, fp32=19.5),
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H200": _HOPPER_SXM,
    "NVIDIA B200": _tera(bf16=2250, fp16=2250, fp8=4500, fp4=9000, tf32=1125, fp32=75),
}
"""By the name that the driver reports. PCIe and NVL variants are slower and stand in no row."""

AMD: Mapping[int, tuple[str, int, Mapping[str, float]]] = {
    0x74A0: ("AMD Instinct MI300A", 228, _tera(bf16=980.6, fp16=980.6, fp8=1961.2, tf32=490.3, fp32=122.6)),
    0x74A1: ("AMD Instinct MI300X", 304, _CDNA3),
    0x74A5: ("AMD Instinct MI325X", 304, _CDNA3),
    0x75A0: ("AMD Instinct MI350X", 256, _tera(bf16=2306.9, fp16=2306.9, fp8=4613.7, fp4=9227.5, fp32=144.2)),
    0x75A3: ("AMD Instinct MI355X", 256, _tera(bf16=2516.6, fp16=2516.6, fp8=5033.2, fp4=10066.3, fp32=157.3)),
}
"""By PCI device id, since architectures share theirs: name, compute units of the whole GPU, peaks of the whole GPU."""
