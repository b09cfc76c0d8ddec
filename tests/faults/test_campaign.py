"""Each fault of ``scripts/fault_campaign.py``: the right exit code, nothing damaged, nothing left over."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts/fault_campaign.py"
    spec = importlib.util.spec_from_file_location("fault_campaign", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


campaign = _script()


@pytest.mark.slow
@pytest.mark.parametrize("name", campaign.FAULTS)
def test_fault(name: str, tmp_path: Path):
    fault, expected = campaign.FAULTS[name]
    if reason := campaign.why_not(name):
        pytest.skip(reason)
    result = fault(tmp_path)
    assert result.code == expected, result
    assert result.wrong == []
    assert result.lost is None or 0 <= result.lost <= campaign.SAVE_INTERVAL
