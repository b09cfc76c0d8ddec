"""Models have as many parameters as published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PUBLISHED = {
    # total parameters as the model's owner states them, or as its published weights add up
    "llama3_8B": (8_030_261_248, "weights of meta-llama/Meta-Llama-3-8B"),
    "llama3_70B": (70_553_706_496, "weights of meta-llama/Meta-Llama-3-70B"),
    "llama3.1_8B": (8_030_261_248, "weights of meta-llama/Llama-3.1-8B"),
    "llama3.1_70B": (70_553_706_496, "weights of meta-llama/Llama-3.1-70B"),
    "llama3.1_405B": (405_853_388_800, "weights of meta-llama/Llama-3.1-405B"),
    "llama3.2_1B": (1_235_814_400, "weights of meta-llama/Llama-3.2-1B"),
    "llama3.3_70B": (70_553_706_496, "weights of meta-llama/Llama-3.3-70B-Instruct"),
    "llama4_17Bx16E": (109e9 - 0.87e9, "model card of Llama 4 Scout, less its vision encoder"),
    "llama4_17Bx128E": (400e9, "model card of Llama 4 Maverick"),
    "deepseek_v3_16b": (15.7e9, "DeepSeek-V2, arXiv 2405.04434, appendix B"),
    "deepseek_v3_236b": (236e9, "DeepSeek-V2, arXiv 2405.04434"),
    "deepseek_v3_671b": (671e9, "DeepSeek-V3, arXiv 2412.19437"),
    "gpt_oss_20b": (20.9e9, "model card of gpt-oss, arXiv 2508.10925"),
    "gpt_oss_120b": (116.8e9, "model card of gpt-oss, arXiv 2508.10925"),
    "qwen3_0.6b": (596_049_920, "weights of Qwen/Qwen3-0.6B"),
    "qwen3_1.7b": (1_720_574_976, "weights of Qwen/Qwen3-1.7B"),
    "qwen3_4b": (4_022_468_096, "weights of Qwen/Qwen3-4B"),
    "qwen3_8b": (8.2e9, "model card of Qwen/Qwen3-8B"),
    "qwen3_14b": (14.8e9, "model card of Qwen/Qwen3-14B"),
    "qwen3_32b": (32.8e9, "model card of Qwen/Qwen3-32B"),
}


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    script = Path(__file__).with_name("count_parameters.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *PUBLISHED],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_model_has_as_many_parameters_as_published(counts: dict[str, int], model: str) -> None:
    published, source = PUBLISHED[model]
    assert counts[model] == pytest.approx(published, rel=0.01), source
