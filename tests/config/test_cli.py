"""``primus config`` as one types it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from primus_core.cli.main import main

if TYPE_CHECKING:
    from tests.config.conftest import Toy

type Primus = Callable[..., tuple[int, str, str]]


@pytest.fixture
def primus(toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Primus:
    """Runs a command line; gives its exit code, stdout and stderr."""
    monkeypatch.setenv("PRIMUS_DISABLE_PLUGINS", ",".join(e.name for e in metadata.entry_points(group="primus")))
    monkeypatch.setenv("PRIMUS_NO_USER_CONFIG", "1")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["--primusfile", "plugin/toy.py", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_show_can_be_fed_back(toy: Toy, primus: Primus) -> None:
    toy.experiment("train_iters: 3\nsink_level: INFO\n")
    code, out, err = primus("config", "show", "exp.yaml", "--lr", "1e-4", "train.steps=2")
    assert code == 0
    assert "lr: 0.0001\n" in out
    assert err == "exp.yaml:7:7: note: 'sink_level' does nothing here: logs are kept per rank\n"
    toy.write("again.yaml", out)
    code, again, err = primus("config", "show", "again.yaml")
    assert (code, again.splitlines()[2:], err) == (0, out.splitlines()[2:], "")


def test_show_with_origins(toy: Toy, primus: Primus) -> None:
    toy.experiment("train_iters: 3\n")
    code, out, _ = primus("config", "show", "--origins", "exp.yaml", "env.A=b")
    assert code == 0
    assert "train_iters: 3  # exp.yaml:6:20, over 5 (toy/modules/pre_trainer.yaml:2:14)\n" in out
    assert "A: b  # command line, argument 1\n" in out


def test_check_of_several_files(toy: Toy, primus: Primus) -> None:
    toy.experiment("train_iters: 3\n", name="good.yaml")
    toy.experiment("train_iters: x\n", name="bad.yaml")
    code, out, err = primus("config", "check", "good.yaml", "bad.yaml", "good.yaml", "lr=1")
    assert code == 2
    assert out == "good.yaml: ok (pretrain with toy, 5 values from 4 files)\n" * 2
    assert err.splitlines() == [
        "bad.yaml:6:20: 'train_iters': expected a whole number, got the text 'x'",
        "1 of 3 experiments are wrong",
    ]
    assert primus("config", "check", "good.yaml", "--platform", "cpu", "--gpus", "4")[0] == 0
    assert primus("config", "check", "good.yaml", "--platform", "abacus")[0] == 2


def test_check_looks_at_every_stage_of_a_file(toy: Toy, primus: Primus) -> None:
    modules = "modules:\n  pre_trainer: {framework: toy}\n  post_trainer: {framework: toy, overrides: {lr: x}}\n"
    toy.write("exp.yaml", modules)
    code, out, err = primus("config", "check", "exp.yaml")
    assert (code, out) == (2, "exp.yaml: ok (pretrain with toy, 4 values from 2 files)\n")
    assert err == "exp.yaml:3:50: 'lr': expected a number, got the text 'x'\n"
    assert primus("config", "check", "exp.yaml", "--stage", "pretrain")[0] == 0


def test_check_takes_overrides_as_train_does(toy: Toy, primus: Primus) -> None:
    toy.experiment("train_iters: 3\n")
    for words in (["--train_iters", "x"], ["--gpus", "2", "--train_iters=x"], ["train_iters=x"]):
        code, out, err = primus("config", "check", "exp.yaml", *words)
        assert (code, out) == (2, "")
        assert "argument 1: 'train_iters': expected a whole number, got the text 'x'" in err
    assert primus("config", "check", "exp.yaml", "--train_iters", "7", "lr=1", "--gpus", "1")[0] == 0


def test_one_file_is_not_files(toy: Toy, primus: Primus) -> None:
    toy.write("exp.yaml", "modules:\n  pre_trainer: {framework: toy, config: null, overrides: {lr: 1}}\n")
    assert primus("config", "check", "exp.yaml")[1] == "exp.yaml: ok (pretrain with toy, 1 value from 1 file)\n"


def test_the_experiment_stands_first(primus: Primus) -> None:
    assert primus("config", "show", "--lr", "1", "exp.yaml") == (
        2,
        "",
        "primus: the experiment stands first: primus config show EXPERIMENT --lr ...\n",
    )


def test_diff(toy: Toy, primus: Primus) -> None:
    toy.experiment("train_iters: 3\napi_key: s3cr3t-a\n", name="a.yaml", top="exp_name: x\n")
    toy.experiment("train_iters: 4\nsave: there\napi_key: s3cr3t-b\n", name="b.yaml", top="exp_name: x\n")
    code, out, _ = primus("config", "diff", "a.yaml", "b.yaml")
    assert code == 0
    assert out.splitlines() == [
        "pre_trainer.train_iters",
        "  - 3  (a.yaml:7:20)",
        "  + 4  (b.yaml:7:20)",
        "pre_trainer.save",
        "  - null  (toy/modules/pre_trainer.yaml:4:7)",
        "  + there  (b.yaml:8:13)",
        "pre_trainer.api_key",
        "  - ***  (a.yaml:8:16)",
        "  + ***  (b.yaml:9:16)",
    ]
    assert primus("config", "diff", "a.yaml", "a.yaml")[1] == "the same values\n"


def test_explain(primus: Primus) -> None:
    code, out, _ = primus("config", "explain", "num_layers")
    assert code == 0
    assert out.splitlines() == [
        "num_layers (toy, toy-engine 2.0)",
        "  Number of layers.",
        "  type     a whole number or null",
        "  default  null",
        "  group    network size",
        "  was      ancient",
        "  1 in module preset pre_trainer",
        "  2 in model preset base",
        "  4 in model preset small",
    ]
    assert primus("config", "explain", "--train-iters")[1].startswith("train_iters (toy")
    assert "now called 'use_turbo_grouped_gemm'" in primus("config", "explain", "use_turbo_grouped_mm")[1]
    assert primus("config", "explain", "train")[1].splitlines()[1:] == [
        "  train.micro_batch_size",
        "  train.steps",
        "  train.lr",
    ]
    assert primus("config", "explain", "launch.nnodes")[1].startswith("launch.nnodes (experiment)")
    code, _, err = primus("config", "explain", "optimiser")
    assert (code, err) == (2, "primus: no backend knows the key 'optimiser'; did you mean 'optimizer'?\n")


def test_schema_for_editors(toy: Toy, primus: Primus) -> None:
    code, out, _ = primus("config", "schema", "--backend", "toy")
    assert code == 0
    keys = json.loads(out)["$defs"]["toy"]["properties"]
    assert keys["show_curve"] == {
        "default": True,
        "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "\\$\\{"}],
    }
    assert keys["optimizer"]["anyOf"][0] == {"enum": ["adam", "sgd"]}
    assert keys["train"]["properties"]["steps"]["default"] == 10
    assert keys["use_turbo_grouped_mm"]["deprecated"]
    assert "ancient" not in keys


def test_migrate_keeps_everything_else(toy: Toy, primus: Primus) -> None:
    text = (
        "# a comment\r\nbases: [one.yaml]   # old\r\nmodules:\r\n  pre_trainer:\r\n    framework: toy\r\n"
        "    overrides:\r\n      'use_turbo_grouped_mm' :  true # use_turbo_grouped_mm\r\n      ancient:  3\r\n"
    )
    path = toy.folder / "exp.yaml"
    path.write_bytes(text.encode())
    code, out, _ = primus("config", "migrate", "exp.yaml")
    assert code == 0
    assert out.splitlines() == [
        "exp.yaml:2:1: bases -> extends",
        "exp.yaml:7:7: use_turbo_grouped_mm -> use_turbo_grouped_gemm",
        "exp.yaml:8:7: ancient -> num_layers",
        "nothing was written; --write does it",
    ]
    assert path.read_bytes() == text.encode()
    assert primus("config", "migrate", "exp.yaml", "--write")[0] == 0
    expected = text.replace("bases:", "extends:").replace("'use_turbo_grouped_mm'", "'use_turbo_grouped_gemm'")
    assert path.read_bytes() == expected.replace("ancient:", "num_layers:").encode()
    assert primus("config", "migrate", "exp.yaml")[1] == "exp.yaml: nothing to rename\n"


def test_migrate_presets_and_what_it_cannot_do(toy: Toy, primus: Primus) -> None:
    toy.write("preset.yaml", "ancient: 3\nuse_turbo_grouped_mm: true\nuse_turbo_grouped_gemm: true\n")
    code, out, err = primus("config", "migrate", "preset.yaml", "--backend", "toy", "--write")
    assert code == 2
    assert out == "preset.yaml:1:1: ancient -> num_layers\n"
    assert "is set too: remove one" in err
    assert (toy.folder / "preset.yaml").read_text().startswith("num_layers: 3\n")


def test_twelve_mistakes_give_twelve_messages(toy: Toy, primus: Primus) -> None:
    toy.write(
        "exp.yaml",
        """\
        work_grup: amd
        exp_name: ${NOT_SET}
        launch: {nnodes: two, nproc: 8}
        modules:
          pre_trainer:
            framework: toy
            model: smal
            overides: {lr: 1}
            overrides:
              num_layers: "4"
              optimizer: adamm
              train: {stepz: 3}
              train: {steps: 3}
              bf16: yes
              7: x
        """,
    )
    code, out, err = primus("config", "check", "exp.yaml", "lr.x=1", "hiden_size=3")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert "Traceback" not in err
    assert [line.split(": ")[0] for line in lines] == [
        "command line, argument 1",
        "command line, argument 2",
        "exp.yaml:1:1",
        "exp.yaml:2:11",
        "exp.yaml:3:18",
        "exp.yaml:3:23",
        "exp.yaml:7:12",
        "exp.yaml:8:5",
        "exp.yaml:10:19",
        "exp.yaml:11:18",
        "exp.yaml:12:15",
        "exp.yaml:13:7",
        "exp.yaml:14:13",
        "exp.yaml:15:7",
    ]
    assert "did you mean 'work_group'?" in lines[2]
    assert "did you mean 'launch.nproc_per_node'?" in lines[5]
    assert "did you mean 'overrides'?" in lines[7]


def test_no_heavy_module_is_imported(toy: Toy, primus: Primus) -> None:
    toy.experiment("lr: 1\n")
    code = (
        "import sys; from primus_core.cli.main import main\n"
        "code = main(['--primusfile', 'plugin/toy.py', 'config', 'show', 'exp.yaml'])\n"
        "heavy = ('torch', 'numpy', 'rich', 'megatron', 'asyncio')\n"
        "print(code, [name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=toy.folder)
    assert result.stderr == "0 []\n"
