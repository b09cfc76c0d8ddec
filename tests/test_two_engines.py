"""The same training through two engines, from the same weights on the same tokens: ``examples/two_engines``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "two_engines"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("megatron") and find_spec("torchtitan")), reason="needs both engines"),
]


def commands() -> list[list[str]]:
    """What the README says to type."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    block = text.split("```console\n")[1].split("```")[0]
    return [line.removeprefix("$ primus ").split() for line in block.splitlines() if line.startswith("$ primus ")]


def test_the_same_curve(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "two_engines").symlink_to(EXAMPLES)
    primus = str(Path(sys.executable).parent / "primus")
    env = os.environ | {"PRIMUS_PLATFORM": "cpu", "PRIMUS_TEAM": "local", "PRIMUS_USER": "me"}
    for words in commands():
        done = subprocess.run([primus, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    megatron, torchtitan = (
        losses(tmp_path / "output/local/me" / f"two_engines_{name}") for name in ("megatron", "torchtitan")
    )
    assert megatron.keys() == torchtitan.keys() == set(range(1, 51))
    assert abs(megatron[1] - torchtitan[1]) < 1e-4
    assert max(abs(megatron[step] / torchtitan[step] - 1) for step in megatron) < 0.01
    assert megatron[50] < megatron[1] - 0.5


def losses(run: Path) -> dict[int, float]:
    lines = (run / "attempts" / "0001" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {event["step"]: event["loss"] for event in map(json.loads, lines) if event["event"] == "step"}
