"""What the plugin says of itself, and of an environment that it cannot run in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from primus_core.cli.main import main
from primus_core.plugins import readiness
from primus_core.plugins.manager import PluginManager
from primus_torchtitan.flavors import describe

HERE = Path(__file__).parents[1]


def test_the_record_asks_for_what_the_distribution_asks_for(plugins: PluginManager) -> None:
    backend = plugins.backend("torchtitan")
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    declared = {line.partition(";")[0] for line in project["dependencies"]}
    wanted = {backend.engine: backend.engine_versions, **backend.requires}
    # torch's own wheels ask for the build of triton that fits them
    assert {name + versions for name, versions in wanted.items() if "triton" not in name} <= declared


@pytest.mark.parametrize(
    ("distribution", "version", "message"),
    [
        ("torchtitan", "", "torchtitan is not installed"),
        ("torchtitan", "0.3.0", "torchtitan 0.3.0 is outside of the tested range >=0.2.2,<0.3"),
        ("torch", "2.6.0", "torch 2.6.0 is outside of the tested range >=2.11,<2.14"),
        ("triton", "", "triton is not installed"),
    ],
)
def test_an_environment_that_does_not_do_is_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    distribution: str,
    version: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIMUS_PLATFORM", "cpu")
    real = readiness.version_of
    monkeypatch.setattr(readiness, "version_of", lambda name: version if name == distribution else real(name))
    assert main(["init", "--backend", "torchtitan", "x.yaml"]) == 0
    capfd.readouterr()
    assert main(["train", "pretrain", "--config", "x.yaml"]) == 3
    lines = [line for line in capfd.readouterr().err.splitlines() if message in line]
    assert lines == [f"primus: torchtitan cannot run here: {message}; pip install primus-torchtitan"]
    assert not (tmp_path / "output").exists()


def test_checking_imports_neither_torch_nor_the_engine(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("modules: {pre_trainer: {framework: torchtitan, model: llama3.2_1B.yaml}}\n")
    code = (
        "import sys; from primus_core.cli.main import main; "
        "code = main(['config', 'check', 'x.yaml', '--gpus', '8', '--platform', 'cuda']); "
        "heavy = {'torch', 'torchtitan', 'numpy', 'rich', 'megatron'} & set(sys.modules); print(code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 set()"


def test_a_model_is_summed_up_by_its_sizes() -> None:
    def sizes(**model: object) -> Mapping[str, object]:
        return describe({f"model.{name}": value for name, value in model.items()})

    assert sizes(name="llama3", flavor="1B") == {
        "layers": 16,
        "hidden size": 2048,
        "attention heads": 32,
        "key and value heads": 8,
        "vocabulary": 128256,
    }
    assert sizes(name="llama3", flavor="8B", n_layers=2)["layers"] == 2
    assert "experts" not in sizes(name="qwen3", flavor="8B")
    assert sizes(name="qwen3", flavor="30B-A3B")["experts per token"] == 8
    assert sizes(name="mine", flavor="small") == {}
