"""``primus models``, ``primus examples`` and ``primus init`` with a toy backend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from primus_core.config.resolve import resolve

PLUGIN = """
    HERE = Path(__file__).parent / "toy_files"

    @hookimpl
    def primus_backends():
        yield Backend(name="toy", summary="A toy", engine="toy-engine", engine_versions=">=1", trainer="nowhere:train",
                      schemas=HERE / "schemas", presets=HERE / "presets", examples=HERE / "examples",
                      templates=HERE / "templates", headline={"layers": "num_layers", "experts": "num_experts"},
                      describe="primus_toy:describe")

    def describe(values):
        return {"depth": values["num_layers"] * 10} if values["num_layers"] == 40 else {}

    @hookimpl
    def primus_models():
        yield Model(backend="toy", name="guest", preset=HERE / "guest.yaml")
"""

KEYS = {
    "num_layers": {"type": "int", "default": 2},
    "num_experts": {"type": "int", "default": None, "nullable": True},
    "lr": {"type": "float", "default": 1e-3},
    "note": {"type": "str", "default": ""},
    "ids": {"type": "list", "default": []},
    "nested": {"type": "mapping", "default": {}},
}

FILES = {
    "presets/models/family_base.yaml": "# What the family shares.\nextends: root.yaml\nlr: 1e-3\n",
    "presets/models/root.yaml": "# What all share.\nnum_experts: 2\n",
    "presets/models/small.yaml": """\
        # A small model,
        # for tests.

        # sizes
        extends: family_base
        num_layers: 4
        num_experts: null
    """,
    "presets/models/large.yaml": "# A large model.\nextends: [family_base.yaml]\nnum_layers: 40\n",
    "presets/modules/pre_trainer.yaml": "note: default\n",
    "guest.yaml": "# From another plugin.\nnum_layers: 7\n",
    "examples/first.yaml": """\
        # The first one.
        modules:
          pre_trainer: {framework: toy, model: small.yaml} # a comment
    """,
    "examples/configs/_base/run.yaml": """\
        # shared
        exp_name: ${EXP:run}
        work_group: w
        modules:
          pre_trainer:
            framework: toy
            model: small.yaml
            overrides:
              note: "1e-3"
              lr: 2e-4
              ids: [1, no, "no", 007, null]
              nested: {"yes": "true", "a b": "${LR:1}", text: "two\\nlines"}
    """,
    "examples/configs/MI300X/small-BF16.yaml": "# small in BF16\nextends: ../_base/run.yaml\n",
    "examples/configs/MI355X/small-BF16.yaml": """\
        # small in BF16, more layers
        extends: ../_base/run.yaml
        modules: {pre_trainer: {overrides: {num_layers: 5}}}
    """,
    "templates/pretrain.yaml": """\
        # A first run.
        exp_name: experiment # its name
        modules:
          pre_trainer:
            framework: toy
            model: small.yaml # the architecture
            overrides:
              num_layers: 1 # tiny
    """,
    "templates/pretrain-model.yaml": """\
        # A run of a model.
        modules:
          pre_trainer:
            framework: toy
            model: "small.yaml"
        exp_name: experiment
    """,
}


@pytest.fixture
def toy(site):
    """The toy backend, installed."""
    site.install("primus-toy", PLUGIN)
    for name, text in FILES.items():
        file = site.folder / "toy_files" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    schema = {"engine": "toy-engine", "version": "1.0", "keys": KEYS}
    (site.folder / "toy_files/schemas").mkdir()
    (site.folder / "toy_files/schemas/toy-engine-1.0.json").write_text(json.dumps(schema))
    return site


def lines(done):
    assert done.returncode == 0, done.stderr
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def refused(done, code=2):
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    return done.stderr


# --- models


def test_models_without_what_they_are_built_on(toy):
    assert lines(toy.primus("models", "list")) == [
        "name backend what it is",
        "guest toy From another plugin.",
        "large toy A large model.",
        "small toy A small model, for tests.",
    ]
    everything = json.loads(toy.primus("models", "list", "--all", "--json").stdout)
    assert {row["name"]: row["base"] for row in everything} == {
        "family_base": True,
        "guest": False,
        "large": False,
        "root": True,
        "small": False,
    }


def test_a_model_with_its_headline_and_origins(toy):
    shown = lines(toy.primus("models", "show", "large"))
    assert shown[0] == "large: A large model."
    assert "extends family_base, root" in shown
    assert "layers 40" in shown
    assert "experts 2" in shown
    assert "num_layers 40 toy/models/large.yaml:3:13" in shown
    assert "num_experts 2 toy/models/root.yaml:2:14" in shown
    [row] = json.loads(toy.primus("models", "show", "small.yaml", "--json").stdout)
    assert row["headline"] == {"layers": 4}
    [row] = json.loads(toy.primus("models", "show", "large.yaml", "--json").stdout)
    assert row["headline"] == {"layers": 40, "experts": 2, "depth": 400}
    assert row["values"]["lr"] == {"value": 1e-3, "origin": "toy/models/family_base.yaml:3:5"}


def test_an_unknown_model_gets_a_suggestion(toy):
    assert "did you mean 'large'?" in refused(toy.primus("models", "show", "lerge"))
    assert "backend 'toy' has no model preset" in refused(toy.primus("models", "show", "x", "--backend", "toy"))


# --- examples


def test_examples(toy):
    assert lines(toy.primus("examples", "list")) == [
        "name backend what it is",
        "MI300X/small-BF16 toy small in BF16",
        "MI355X/small-BF16 toy small in BF16, more layers",
        "first toy The first one.",
    ]
    [row] = json.loads(toy.primus("examples", "list", "--gpu", "mi355x", "--json").stdout)
    assert (row["name"], row["gpu"]) == ("MI355X/small-BF16", "MI355X")
    assert "there are some for: MI300X, MI355X" in refused(toy.primus("examples", "list", "--gpu", "H100"))


def test_an_example_that_extends_nothing_is_copied_as_it_is(toy, tmp_path):
    done = toy.primus("examples", "copy", "first", f"{tmp_path}/new/")
    assert lines(done) == [f"{tmp_path}/new/first.yaml"]
    assert (tmp_path / "new/first.yaml").read_text() == (toy.folder / "toy_files/examples/first.yaml").read_text()
    assert toy.primus("examples", "show", "first").stdout == (tmp_path / "new/first.yaml").read_text()


@pytest.mark.parametrize("environ", [{}, {"EXP": "other", "LR": "3"}])
@pytest.mark.parametrize("name", ["MI300X/small-BF16", "MI355X/small-BF16"])
def test_a_copied_example_resolves_to_the_same_values_elsewhere(toy, tmp_path, name, environ):
    copy = tmp_path / "copy.yaml"
    assert toy.primus("examples", "copy", name, str(copy)).returncode == 0
    assert "extends" not in copy.read_text()
    original = toy.folder / f"toy_files/examples/configs/{name}.yaml"
    plugins = toy.load()
    one, other = (resolve(file, None, [], plugins, environ=environ) for file in (original, copy))
    assert one.config.plain() == other.config.plain()
    assert (one.exp_name, one.work_group, one.model) == (other.exp_name, other.work_group, other.model)


def test_nothing_is_overwritten(toy, tmp_path):
    (tmp_path / "first.yaml").write_text("mine")
    for words in (["examples", "copy", "first"], ["init", "first.yaml"]):
        done = toy.primus(*words[:-1], *([words[-1], str(tmp_path)] if words[0] == "examples" else
                                         [str(tmp_path / words[-1])]))  # fmt: skip
        assert "exists already and is not overwritten" in refused(done)
    assert (tmp_path / "first.yaml").read_text() == "mine"


@pytest.mark.parametrize("below", ["x.yaml", "a/b/x.yaml"])
def test_a_file_in_the_place_of_a_folder_is_named(toy, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    wanted = tmp_path / "file" / below
    assert refused(toy.primus("init", str(wanted))) == (
        f"primus: cannot write {wanted}: {tmp_path / 'file'} is a file, not a folder\n"
    )


def test_examples_that_are_not_clear_or_not_there(toy):
    message = refused(toy.primus("examples", "show", "small-BF16"))
    assert "MI300X/small-BF16 (toy), MI355X/small-BF16 (toy); say which" in message
    assert lines(toy.primus("examples", "show", "small-BF16", "--gpu", "MI300X"))[0] == "# small in BF16"
    assert "did you mean 'small-BF16'" in refused(toy.primus("examples", "show", "smal-BF16", "--gpu", "MI300X"))


# --- init


def test_init_takes_the_backends_template(toy, tmp_path):
    done = toy.primus("init", f"{tmp_path}/runs/my run.yaml")
    assert lines(done) == [f"{tmp_path}/runs/my run.yaml"]
    text = (tmp_path / "runs/my run.yaml").read_text()
    assert text == dedent(FILES["templates/pretrain.yaml"]).replace("exp_name: experiment", "exp_name: my run")
    experiment = resolve(tmp_path / "runs/my run.yaml", None, [], toy.load(), environ={})
    assert (experiment.exp_name, experiment.get("num_layers"), experiment.get("note")) == ("my run", 1, "default")


def test_init_with_a_model_leaves_its_size(toy, tmp_path):
    assert toy.primus("init", "--model", "large", "--backend", "toy", str(tmp_path)).returncode == 0
    experiment = resolve(tmp_path / "experiment.yaml", None, [], toy.load(), environ={})
    assert (experiment.model, experiment.get("num_layers")) == ("large", 40)


def test_init_without_a_template(toy, tmp_path):
    for file in (toy.folder / "toy_files/templates").iterdir():
        file.unlink()
    assert toy.primus("init", f"{tmp_path}/007.yaml").returncode == 0
    experiment = resolve(tmp_path / "007.yaml", None, [], toy.load(), environ={})
    assert (experiment.exp_name, experiment.model, experiment.stage) == ("007", "guest", "pretrain")
    assert (tmp_path / "007.yaml").read_text().startswith("# A toy.\n# Check it with: primus config check")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--model", "smal"], 2, "did you mean 'small'?"),
        (["--stage", "posttrain"], 2, "backend 'toy' cannot posttrain; it can pretrain"),
        (["--backend", "maxtext"], 3, "backend 'maxtext' is not installed: pip install primus-maxtext"),
        (["--backend", "tot"], 2, "did you mean 'toy'?"),
    ],
)
def test_init_says_what_is_wrong(toy, tmp_path, words, code, message):
    assert message in refused(toy.primus("init", f"{tmp_path}/x.yaml", *words), code)
    assert not Path(f"{tmp_path}/x.yaml").exists()


def test_init_needs_one_backend(site, tmp_path):
    assert "pip install primus-megatron" in refused(site.primus("init", f"{tmp_path}/x.yaml"), 3)
    site.install("primus-two", "@hookimpl\ndef primus_backends():\n    yield backend('a')\n    yield backend('b')\n")
    message = refused(site.primus("init", f"{tmp_path}/x.yaml"))
    assert "say which backend: --backend a, --backend b" in message


def test_these_commands_import_little():
    script = (
        "import sys; from primus_core.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    for words in (["models", "list"], ["examples", "list"], ["patches", "list"]):
        assert subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=False).returncode == 0
