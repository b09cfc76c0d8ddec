from pathlib import Path

import pytest

from primus_core.plugins import readiness
from primus_core.plugins.records import Backend


@pytest.mark.parametrize(
    ("installed", "reasons"),
    [
        ({"triton": "3.7.1"}, ()),
        ({"pytorch-triton-rocm": "3.6.0"}, ()),
        ({"pytorch-triton-rocm": "3.5.0"}, ("pytorch-triton-rocm 3.5.0 is outside of the tested range >=3.6",)),
        ({}, ("triton is not installed",)),
    ],
)
def test_one_of_several_builds_is_enough(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], reasons: tuple[str, ...]
) -> None:
    monkeypatch.setattr(readiness, "version_of", lambda name: ({"toy": "1.0"} | installed).get(name, ""))
    backend = Backend(
        name="toy",
        summary="",
        engine="toy",
        engine_versions=">=1",
        trainer="toy:train",
        schemas=Path(),
        presets=Path(),
        requires={"triton | pytorch-triton-rocm": ">=3.6"},
    )
    assert readiness.readiness(backend, "cpu").reasons == reasons
