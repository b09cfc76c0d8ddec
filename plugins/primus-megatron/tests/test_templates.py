"""What ``primus init`` writes for this backend passes the checks as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from primus_core.cli.context import State
from primus_core.cli.main import cli


@pytest.mark.parametrize("stage", ["pretrain", "posttrain"])
@pytest.mark.parametrize("model", [None, "qwen2.5_7B"])
def test_experiments_to_start_from_pass_the_checks(tmp_path: Path, stage: str, model: str | None) -> None:
    file = tmp_path / "mine.yaml"
    chosen = ["--model", model] if model else []
    for words in (
        ["init", "--backend", "megatron", "--stage", stage, *chosen, str(file)],
        ["config", "check", str(file)],
    ):
        done = CliRunner().invoke(cli, words, obj=State())
        assert done.exit_code == 0, done.output
    assert f"ok ({stage} with megatron" in done.output
    text = file.read_text()
    assert "exp_name: mine\n" in text
    assert f"model: {model or 'llama3.2_1B'}.yaml" in text
