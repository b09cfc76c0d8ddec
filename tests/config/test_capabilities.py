"""What a backend declares is what is refused, and each feature is asked for by keys that exist."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from primus_core.config import capabilities
from primus_core.config.check import check
from primus_core.config.experiment import CheckContext
from primus_core.config.schema import for_backend
from primus_core.errors import ConfigError, EnvironmentFault
from primus_core.plugins.manager import PluginManager

CODE = 'CAPABILITIES = "toy_can:CAN"'
CAN = """
from primus_core.plugins.records import Capability

CAN = (
    Capability(feature="swing", title="Swinging", support="full", note="by itself"),
    Capability(feature="lora", support="unsupported", note="the toy has no adapters", asked=({"extra": "any"},)),
    Capability(feature="bf16", support="partial", note="needs a GPU", platforms=("cuda",), asked=({"bf16": True},)),
    Capability(feature="moe", support="unsupported", note="too deep together",
               asked=({"num_layers": "> 8", "hidden_size": 64}, {"optimizer": "sgd"})),
    Capability(feature="mla", support="partial", note="needs toy-kernels", needs="toy-kernels", asked=({"lr": "> 5"},)),
    Capability(feature="fp8", support="unsupported", engine="<2", note="came with 2", asked=({"freq": 3},)),
)
"""


@pytest.fixture
def able(make_toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The toy with what its module of capabilities says."""

    def make(can: str) -> Any:
        toy = make_toy(CODE)
        toy.write("plugin/toy_can.py", can)
        monkeypatch.syspath_prepend(toy.folder / "plugin")
        monkeypatch.delitem(sys.modules, "toy_can", raising=False)
        return toy

    return make


@pytest.fixture
def problems(able: Callable[[str], Any]) -> Callable[..., list[str]]:
    toy = able(CAN)

    def of(overrides: str, **context: Any) -> list[str]:
        toy.experiment(overrides)
        try:
            check(toy.resolve(), CheckContext(**context), toy.plugins)
        except ConfigError as error:
            return [str(problem) for problem in error.problems]
        return []

    return of


@pytest.mark.parametrize(
    ("overrides", "context", "expected"),
    [
        ("extra: {}\n", {}, []),
        ("extra: {a: 1}\n", {}, ["exp.yaml:6:14: extra: the toy has no adapters"]),
        ("bf16: true\n", {}, []),
        ("bf16: true\n", {"platform": "cuda"}, []),
        ("bf16: true\n", {"platform": "cpu"}, ["exp.yaml:6:13: bf16: needs a GPU (this is cpu)"]),
        ("num_layers: 9\nhidden_size: 32\n", {}, []),
        ("num_layers: 8\nhidden_size: 64\n", {}, []),
        ("num_layers: 9\nhidden_size: 64\n", {}, ["exp.yaml:6:19: num_layers: too deep together"]),
        ("optimizer: sgd\n", {}, ["exp.yaml:6:18: optimizer: too deep together"]),
        ("lr: 6\n", {}, []),
        ("lr: 6\n", {"installed": {"toy-kernels-cu13": "1.0"}}, []),
        ("lr: 6\n", {"installed": {"toy-engine": "2.0"}}, ["exp.yaml:6:11: lr: needs toy-kernels"]),
        ("freq: 3\n", {"installed": {"toy-engine": "2.0"}}, []),
        ("freq: 3\n", {"installed": {"toy-engine": "1.0"}}, ["exp.yaml:6:13: freq: came with 2"]),
    ],
)
def test_what_is_asked_for_and_cannot_be_had_is_refused(
    problems: Callable[..., list[str]], overrides: str, context: dict[str, Any], expected: list[str]
) -> None:
    assert problems(overrides, **context) == expected


def test_own_features_come_last_and_need_a_title(able: Callable[[str], Any]) -> None:
    backend = able(CAN).plugins.backend("toy")
    features = [each.feature for each in capabilities.of(backend)]
    assert features == ["lora", "moe", "mla", "bf16", "fp8", "swing"]
    assert [each.feature for each in capabilities.of(backend, "2.1")] == [name for name in features if name != "fp8"]


def test_a_feature_without_title_names_its_backend(able: Callable[[str], Any]) -> None:
    backend = able(CAN.replace('title="Swinging", ', "")).plugins.backend("toy")
    with pytest.raises(EnvironmentFault, match="backend 'toy': the feature 'swing' of its own needs a title"):
        capabilities.of(backend)


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_shipped_backends_declare_what_exists(name: str) -> None:
    backend = PluginManager.load().backend(name)
    keys = for_backend(backend).keys
    declared = capabilities.of(backend)
    assert len({each.feature for each in declared}) == len(declared) > 20
    for each in declared:
        SpecifierSet(each.engine)
        assert set(each.platforms) <= set(backend.platforms)
        assert all(key in keys for wish in each.asked for key in wish), each
