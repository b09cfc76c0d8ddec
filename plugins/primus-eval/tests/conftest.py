from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import SMALL, Primus, make_tokenizer


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder)
    return make_tokenizer(folder, 400)


@pytest.fixture
def primus(tmp_path: Path) -> Primus:
    def run(*words: str | Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "primus_core", *map(str, words)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf"), **environ}
        return subprocess.run(argv, env=env, cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False)

    return run
