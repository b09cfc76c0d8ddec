"""``primus backends`` shows what the backends declare."""

from __future__ import annotations

import json
import subprocess
import sys


def primus(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "primus_core", "backends", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_backends_are_compared_and_shown_by_the_same_facts() -> None:
    facts = json.loads(primus("list", "--format", "json"))
    page = json.loads(primus("show", "torchtitan", "--format", "json"))
    assert {name: each["support"] for name, each in page["features"].items()} == {
        name: each["support"] for name, each in facts["torchtitan"].items()
    }
    assert "primus_turbo.enable_attention_float8" in page["refused"]
    head, *rows = primus("list").splitlines()
    assert head.split()[:3] == ["feature", "megatron", "torchtitan"]
    assert any(row.split() == ["LoRA", "yes", "no"] for row in rows)
    assert "| LoRA | no |" in primus("show", "torchtitan", "--format", "markdown")


def test_an_unknown_backend_is_one_message() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "primus_core", "backends", "show", "megatorn"], capture_output=True, text=True
    )
    assert done.returncode in (2, 3) and "did you mean 'megatron'" in done.stderr
