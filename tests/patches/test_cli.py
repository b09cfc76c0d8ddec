"""``primus patches`` in a process of its own, with a plugin and an engine that are installed distributions."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

PLUGIN = """
    from pathlib import Path
    from primus_core.plugins import hookimpl
    from primus_core.plugins.records import Backend, Condition, Patch

    HERE = Path(__file__).parent

    @hookimpl
    def primus_backends():
        yield Backend(name="toy", summary="a toy", engine="toy-engine", engine_versions=">=1,<1.3",
                      trainer="primus_toy:train", schemas=HERE, presets=HERE)

    @hookimpl
    def primus_patches():
        yield Patch(name="toy.ten", reason="the loss is ten too small", backend="toy", engine_versions=">=1",
                    target="toy.loss:cross_entropy", replacement="primus_toy:ten", phase="train",
                    when=Condition(platforms=("cpu",)), fingerprints=HERE / "fingerprints.json",
                    upstream="https://example.org/1")
        yield Patch(name="toy.quiet", reason="it asks for a GPU", backend="toy", engine_versions=">=1,<1.2",
                    target="toy.model:initialize", replacement="primus_toy:ten", required=False)

    def ten(original):
        return lambda *args: original(*args) + 10
"""


@pytest.fixture
def primus(tmp_path, engine, monkeypatch):
    """Runs ``primus`` with a version of the toy engine; None leaves the engine away."""
    plugin = tmp_path / "plugin"
    metadata = plugin / "primus_toy-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: primus-toy\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[primus]\ntoy = primus_toy\n")
    (plugin / "primus_toy.py").write_text(dedent(PLUGIN))

    def run(version: str | None, *words: str) -> subprocess.CompletedProcess[str]:
        places = [plugin]
        if version:
            engine(version)
            places.append(tmp_path / f"engine-{version}")
        environ = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, places)), PYTHONDONTWRITEBYTECODE="1")
        command = [sys.executable, "-c", "from primus_core.cli.main import run; run()", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return run


def test_list_needs_no_engine(primus):
    done = primus(None, "patches", "list", "--backend", "toy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "toy: toy-engine (not installed), 2 patches",
        "  toy.quiet  optional  it asks for a GPU",
        "  toy.ten    required  the loss is ten too small",
    ]


def test_explain_says_what_is_known_here(primus):
    done = primus("1.3", "patches", "list", "--backend", "toy", "--explain")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "here is for toy-engine >=1,<1.2, not 1.3" in lines
    assert "only if platform is cpu: depends on the run" in lines
    assert "recorded for no version" in lines
    assert "upstream https://example.org/1" in lines
    assert "target toy.loss:cross_entropy" in lines


def test_json(primus):
    ten, quiet = sorted(json.loads(primus("1.0", "patches", "list", "--json", "--backend", "toy").stdout),
                        key=lambda row: row["name"], reverse=True)  # fmt: skip
    assert (ten["name"], ten["required"], ten["engine_version"]) == ("toy.ten", True, "1.0")
    assert ten["when"] == ["platform is cpu"]
    assert quiet["status"] == "fits"


def test_check_compares_with_what_was_recorded(primus, tmp_path):
    words = ("patches", "check", "--backend", "toy")
    unknown = primus("1.0", *words)
    assert unknown.returncode == 3
    assert "toy.ten (toy.loss:cross_entropy): no fingerprint of its target is recorded" in unknown.stderr

    recorded = primus("1.0", *words, "--update")
    assert recorded.returncode == 0, recorded.stderr
    assert list(json.loads((tmp_path / "plugin/fingerprints.json").read_text())["toy.ten"]) == ["1.0"]

    assert primus("1.1", *words).returncode == 0
    drifted = primus("1.3", *words)
    assert drifted.returncode == 3
    assert "its signature was (logits, target) and is (logits, target, reduction='sum')" in drifted.stdout
    assert "left out" in drifted.stdout
    assert "cannot be applied to toy-engine 1.3 (supported: >=1)" in drifted.stderr
    assert "Traceback" not in drifted.stderr

    both = primus("1.3", *words, "--update")
    assert both.returncode == 0, both.stderr
    assert list(json.loads((tmp_path / "plugin/fingerprints.json").read_text())["toy.ten"]) == ["1.0", "1.3"]

    gone = primus("2.0", *words)
    assert gone.returncode == 3
    assert "near names: cross_entropy_loss" in gone.stderr
    assert primus("2.0", *words, "--update").returncode == 3


def test_check_without_the_engine(primus):
    done = primus(None, "patches", "check", "--backend", "toy")
    assert done.returncode == 3
    assert "toy-engine is not installed" in done.stderr


def test_an_unknown_backend_gets_a_suggestion(primus):
    done = primus(None, "patches", "list", "--backend", "tou")
    assert done.returncode == 2
    assert "did you mean 'toy'?" in done.stderr


def test_listing_imports_neither_engine_nor_rich(primus):
    script = "import sys; from primus_core.cli.main import main; code = main(['patches', 'list', '--explain']); " \
        "sys.exit(code or bool({'torch', 'numpy', 'rich', 'toy', 'megatron'} & set(sys.modules)))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
