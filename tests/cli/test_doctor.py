from __future__ import annotations

import json
from pathlib import Path

import pytest

BACKEND = """
    @hookimpl
    def primus_backends():
        yield backend("good", engine="toy-engine", versions=">=1,<2", requires={{"toy-helper": ">=3"}},
                      optional={{"toy-extra": "Speed."}}, install="pip install primus-good", platforms={platforms})
"""


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def doctor(site, *words, **environ):
    result = site.primus("doctor", *words, PRIMUS_PLATFORM="cpu", **environ)
    return result.returncode, result.stdout


def test_with_no_backend_it_says_so_and_is_content(site):
    code, text = doctor(site)
    assert code == 0
    assert "backends: none is installed" in text and "platform: cpu" in text


def test_a_backend_with_everything_can_run(site):
    site.install("primus-good", BACKEND.format(platforms=("cpu",)))
    site.install("toy-engine", version="1.4+local")
    site.install("toy-helper", version="3.1")
    code, text = doctor(site)
    assert code == 0
    assert "good: can run here" in text
    assert "1.4+local" in text and "tested with >=1,<2" in text
    assert "toy-extra" in text and "optional: Speed." in text
    assert "install with" not in text


def test_a_backend_that_cannot_run_says_every_reason_and_what_to_do(site):
    site.install("primus-good", BACKEND.format(platforms=("rocm",)))
    site.install("toy-engine", version="2.0")
    code, text = doctor(site)
    assert code == 3
    assert "good: cannot run here" in text
    assert "because it runs on rocm, and this machine is cpu" in text
    assert "because toy-engine 2.0 is outside of the tested range >=1,<2" in text
    assert "because toy-helper is not installed" in text
    assert "install with: pip install primus-good" in text
    assert "problem: no installed backend can run here" in text


def test_one_backend_that_can_run_is_enough_unless_another_is_asked_for(site):
    site.install("primus-good", BACKEND.format(platforms=("cpu",)))
    site.install("primus-core2", "@hookimpl\ndef primus_backends(): yield backend('plain')")
    assert doctor(site)[0] == 0
    assert doctor(site, "--backend", "plain")[0] == 0
    assert doctor(site, "--backend", "good")[0] == 3


def test_broken_plugins_and_conflicts_are_problems(site):
    site.install("primus-bad", "raise ValueError('no way')")
    for name in ("a", "b"):
        site.install(f"primus-{name}", "@hookimpl\ndef primus_backends(): yield backend('x')")
    code, text = doctor(site, "--json")
    facts = json.loads(text)
    assert code == 3
    assert any("Conflict: backend 'x'" in problem for problem in facts["problems"])
    assert any("'bad' (primus-bad 1.0) is broken: ValueError: no way" in problem for problem in facts["problems"])
    assert {plugin["name"]: plugin["status"] for plugin in facts["plugins"]}["bad"] == "broken"


def test_nothing_private_is_shown(site, tmp_path):
    site.install("primus-bad", "import os\nraise ValueError(os.environ['HF_TOKEN'])")
    code, text = doctor(site, HOME=str(tmp_path), HF_TOKEN="hf_sekret123", PRIMUS_API_KEY="sk-sekret")
    assert code == 3
    assert "sekret" not in text
    assert str(tmp_path) not in text and str(Path("~") / "site") in text
    assert "PRIMUS_API_KEY=***" in text
