"""What ``primus data prepare`` writes is what Megatron's own classes write and read."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer
from transformers import AutoTokenizer

from primus_core.cli.main import main

TEXTS = [text for _, text in sorted(topics.items())]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("data") / "pydoc"
    assert main(["data", "prepare", "pydoc", "--output", str(prefix), "--train-tokenizer", "1000"]) == 0
    return prefix


@pytest.fixture(scope="module")
def folder(prefix: Path) -> str:
    return f"{prefix}-tokenizer"


def test_tokens_are_those_of_transformers(prefix: Path, folder: str):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [tokenizer(text).input_ids + [tokenizer.eos_token_id] for text in TEXTS]
    assert [tokens.tolist() for tokens in IndexedDataset(str(prefix))] == expected


def test_bytes_are_those_of_the_builder(prefix: Path, folder: str, tmp_path: Path):
    tokenizer = HuggingFaceTokenizer(folder)
    builder = IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=np.uint16)
    for text in TEXTS:
        tokens = [*tokenizer.text_to_ids(text), tokenizer.eos_id]
        builder.add_document(torch.tensor(tokens), [len(tokens)])
    builder.finalize(str(tmp_path / "own.idx"))
    for suffix in (".bin", ".idx"):
        assert Path(f"{prefix}{suffix}").read_bytes() == (tmp_path / f"own{suffix}").read_bytes()


def test_a_tokenizer_that_adds_tokens_of_its_own(folder: str, tmp_path: Path):
    """Llama's tokenizers put a first token before each text: Megatron's tool keeps it, so do we."""
    from tokenizers import Tokenizer, processors

    inner = Tokenizer.from_file(f"{folder}/tokenizer.json")
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1000)])
    (tmp_path / "llama").mkdir()
    inner.save(str(tmp_path / "llama" / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "</s>", "special": True}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (tmp_path / "llama" / "tokenizer_config.json").write_text(json.dumps(config))
    words = ["data", "prepare", "pydoc", "--tokenizer", str(tmp_path / "llama"), "--output", str(tmp_path / "a")]
    assert main(words) == 0
    tokenizer = HuggingFaceTokenizer(str(tmp_path / "llama"))
    expected = [[*tokenizer.text_to_ids(text), 1001] for text in TEXTS]
    assert expected[0][0] == 1000
    assert [tokens.tolist() for tokens in IndexedDataset(str(tmp_path / "a"))] == expected
