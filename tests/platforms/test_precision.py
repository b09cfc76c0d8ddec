"""What architectures can compute in."""

from __future__ import annotations

import pytest

from primus_core.platforms.precision import can_fp4, can_fp8


@pytest.mark.parametrize(
    ("arch", "fp8", "fp4"),
    [
        ("sm_80", False, False),
        ("sm_89", True, False),
        ("sm_90a", True, False),
        ("sm100", True, True),
        ("gfx90a", False, False),
        ("gfx942", True, False),
        ("gfx950", True, True),
        ("gfx1201", True, False),
        ("gfx1250", True, True),
        ("x86_64", False, False),
    ],
)
def test_low_precision_by_architecture(arch: str, fp8: bool, fp4: bool) -> None:
    assert (can_fp8(arch), can_fp4(arch)) == (fp8, fp4)
