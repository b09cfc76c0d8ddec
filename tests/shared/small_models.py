"""Tiny models in Hugging Face's format, and the command line that is tried on them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import primus_eval

TEXT = Path(primus_eval.__file__).with_name("text.txt")
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def make_tokenizer(folder: Path, size: int) -> Path:
    """A byte-level BPE without any file of the hub."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([TEXT.read_text()], trainer)
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>").save_pretrained(folder)
    return folder


type Primus = Callable[..., subprocess.CompletedProcess[str]]
