"""``primus plugins new``: the project installs, its own tests pass, and it trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from primus_core.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.mark.slow
def test_a_new_plugin_passes_its_tests_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "my-engine"]) == 0
    project = tmp_path / "primus-my-engine"
    assert [path.name for path in tmp_path.iterdir()] == [project.name]
    texts = [file.read_text() for file in project.rglob("*") if file.is_file()]
    assert not [text for text in texts if "nano" in text]
    assert not [path for path in project.rglob("*") if "nano" in path.name]
    python = environment(tmp_path / "venv")
    uv = Path(sys.executable).with_name("uv")
    sink = tmp_path / "sink"
    shutil.copytree(EXAMPLES / "csv-sink", sink)
    call(uv, *"pip install --quiet --offline --no-deps --no-build-isolation --python".split(), python, project, sink)
    for folder in (project, sink):
        call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder)
    example = project / "src/primus_my_engine/examples/tiny.yaml"
    words = ["--backend", "my-engine", "--config", example, "--steps", "2", "metrics.sinks=[csv]"]
    assert "my-engine" in call(python, "-m", "primus_core", "plugins", "list")
    call(python, "-m", "primus_core", "train", "pretrain", *words, cwd=tmp_path)
    (table,) = tmp_path.glob("output/*/*/tiny/attempts/0001/metrics.csv")
    assert [row.partition(",")[0] for row in table.read_text().splitlines()] == ["step", "1", "2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Engine", "small letters, digits and single hyphens"),
        ("../up", "small letters, digits and single hyphens"),
        ("primus-x", "leave out primus"),
        ("json", "Python has json already"),
        ("torchtitan", "is taken: torchtitan has a module torchtitan"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", name]) == 2
    assert message in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["plugins", "new", "my-engine", str(tmp_path / "mine")]) == 2
    assert "exists already and is not overwritten" in capfd.readouterr().err
    assert not list((tmp_path / "mine").iterdir())


def environment(folder: Path) -> Path:
    """An environment that sees what is installed in ours, editable distributions too; gives its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    own = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def call(*words: str | Path, cwd: Path | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_", "PYTEST_"))}
    env = kept | {"OMP_NUM_THREADS": "1", "PRIMUS_PLATFORM": "cpu"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout
