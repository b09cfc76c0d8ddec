"""Every preset resolves, and models have as many parameters as published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_core.config.experiment import CheckContext, Experiment
from primus_core.plugins.manager import PluginManager
from primus_megatron.checks import check

PRESETS = Path(__file__).parents[1] / "src" / "primus_megatron" / "presets"
MODELS = sorted(file.stem for file in (PRESETS / "models").glob("*.yaml"))
FAMILIES = {"language_model", "primus_megatron_model"} | {name for name in MODELS if name.endswith("_base")}
DEVIATIONS = yaml.safe_load((PRESETS / "deviations.yaml").read_text())

HEAD = "modules: {{pre_trainer: {{framework: megatron, model: {model}.yaml, overrides: {{{overrides}}}}}}}\n"

PUBLISHED = {
    # total parameters as the model's owner states them, or as its published weights add up
    "llama2_7B": (6_738_415_616, "weights of meta-llama/Llama-2-7b-hf"),
    "llama2_13B": (13_015_864_320, "weights of meta-llama/Llama-2-13b-hf"),
    "llama2_70B": (68_976_648_192, "weights of meta-llama/Llama-2-70b-hf"),
    "llama3_8B": (8_030_261_248, "weights of meta-llama/Meta-Llama-3-8B"),
    "llama3_70B": (70_553_706_496, "weights of meta-llama/Meta-Llama-3-70B"),
    "llama3.1_8B": (8_030_261_248, "weights of meta-llama/Llama-3.1-8B"),
    "llama3.1_70B": (70_553_706_496, "weights of meta-llama/Llama-3.1-70B"),
    "llama3.1_405B": (405_853_388_800, "weights of meta-llama/Llama-3.1-405B"),
    "llama3.2_1B": (1_235_814_400, "weights of meta-llama/Llama-3.2-1B"),
    "llama3.2_3B": (3_212_749_824, "weights of meta-llama/Llama-3.2-3B"),
    "llama3.3_70B": (70_553_706_496, "weights of meta-llama/Llama-3.3-70B-Instruct"),
    "qwen2.5_3B": (3.09e9, "model card of Qwen/Qwen2.5-3B"),
    "qwen2.5_7B": (7.61e9, "model card of Qwen/Qwen2.5-7B"),
    "qwen2.5_14B": (14.7e9, "model card of Qwen/Qwen2.5-14B"),
    "qwen2.5_32B": (32.5e9, "model card of Qwen/Qwen2.5-32B"),
    "qwen2.5_72B": (72.7e9, "model card of Qwen/Qwen2.5-72B"),
    "qwen3_4B": (4.0e9, "model card of Qwen/Qwen3-4B"),
    "qwen3_8B": (8.2e9, "model card of Qwen/Qwen3-8B"),
    "qwen3_14B": (14.8e9, "model card of Qwen/Qwen3-14B"),
    "qwen3_32B": (32.8e9, "model card of Qwen/Qwen3-32B"),
    "qwen3_30B_A3B": (30.5e9, "model card of Qwen/Qwen3-30B-A3B"),
    "qwen3_235B_A22B": (235e9, "model card of Qwen/Qwen3-235B-A22B"),
    "mixtral_8x7B_v0.1": (46.7e9, "Mixtral of Experts, arXiv 2401.04088 (47B), and its weights"),
    "mixtral_8x22B_v0.1": (141e9, "announcement of Mixtral 8x22B"),
    "deepseek_v2_lite": (15.7e9, "DeepSeek-V2, arXiv 2405.04434, appendix B"),
    "deepseek_v2": (236e9, "DeepSeek-V2, arXiv 2405.04434"),
    "deepseek_v3": (685e9, "README of DeepSeek-V3: 671B, and 14B of multi-token prediction"),
    "mamba_370M": (371_516_416, "weights of state-spaces/mamba-370m"),
}


@pytest.mark.parametrize("model", MODELS)
def test_every_preset_resolves_and_passes_its_checks(
    experiment: Callable[..., Experiment], plugins: PluginManager, model: str
) -> None:
    made = experiment("", head=HEAD.format(model=model, overrides="mock_data: true, vocab_size: 9"))
    assert not made.notices
    found = [str(problem) for problem in check(made, CheckContext(world_size=8))]
    if model not in FAMILIES:
        assert not found


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    script = Path(__file__).parent / "count_parameters.py"
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


def _deviations(kind: str) -> Iterator[Any]:
    for row in DEVIATIONS[kind]:
        for model in row["models"]:
            if row["key"] != "extends":
                yield pytest.param(model, row["key"], row["is"], id=f"{model}-{row['key']}")


@pytest.mark.parametrize(("model", "key", "value"), [*_deviations("changed"), *_deviations("left")])
def test_presets_are_as_the_list_of_deviations_says(
    experiment: Callable[..., Experiment], model: str, key: str, value: object
) -> None:
    assert experiment("", head=HEAD.format(model=model, overrides="")).get(key) == value


def test_a_state_space_model_gets_its_layers_and_an_unknown_vocabulary_stays_open(
    experiment: Callable[..., Experiment],
) -> None:
    made = experiment("", head=HEAD.format(model="mamba_370M", overrides="mock_data: true"))
    assert made.get("hybrid_layer_pattern") == "M" * 48
    assert made.get("max_position_embeddings") == made.get("seq_length")
    llama = experiment("mock_data: true")
    assert llama.get("vocab_size") == 128256 and str(llama.origin_of("vocab_size")) == "derived by megatron"
    assert experiment("mock_data: true\nvocab_size: 512").get("vocab_size") == 512
    assert experiment("mock_data: true\ntokenizer_model: some/body").get("vocab_size") is None
