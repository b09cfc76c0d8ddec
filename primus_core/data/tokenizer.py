"""Fast tokenizers in the ``tokenizer.json`` format: found, described, trained. Needs neither transformers nor torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_core.data.needs import need
from primus_core.errors import UserError

ENDOFTEXT = "<|endoftext|>"
USUAL_ENDS = (ENDOFTEXT, "<|end_of_text|>", "</s>", "<eos>")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer on disk: ``file`` is its ``tokenizer.json``, ``eod`` the token that ends a document."""

    name: str
    file: Path
    sha256: str
    vocab_size: int
    eod_token: str | None
    eod: int | None

    def load(self) -> Any:
        """The ``tokenizers.Tokenizer``, without the truncation and padding that some files ask for."""
        return _read(self.file)


def find_tokenizer(name: str, eod_token: str | None = None) -> TokenizerFile:
    """A tokenizer by folder, by ``tokenizer.json`` or by its name on the hub.

    Raises ``UserError`` when there is none, or when ``eod_token`` is not in its vocabulary.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise UserError(f"{path}: has no tokenizer.json; only fast tokenizers of Hugging Face's format are read")
        return describe(name, path / "tokenizer.json", eod_token)
    if path.is_file():
        return describe(name, path, eod_token)
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or path.suffix:
        raise UserError(f"tokenizer {name}: no such file or folder")
    return describe(name, _download(name), eod_token)


def describe(name: str, file: Path, eod_token: str | None = None) -> TokenizerFile:
    """Read what there is to know about a ``tokenizer.json`` and the ``tokenizer_config.json`` beside it."""
    tokenizer = _read(file)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    eod_token = _end_of_document(name, file, vocabulary, eod_token)
    return TokenizerFile(
        name=name,
        file=file,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        vocab_size=max(vocabulary.values()) + 1,
        eod_token=eod_token,
        eod=None if eod_token is None else vocabulary[eod_token],
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> TokenizerFile:
    """Train a byte-level BPE with ``<|endoftext|>`` as its one special token, and save it to ``folder``.

    ``transformers.AutoTokenizer`` loads the folder. The vocabulary is smaller than asked when the text has no more
    pairs to merge.
    """
    need("tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size <= len(alphabet):
        raise UserError(f"--train-tokenizer {vocab_size}: at least {len(alphabet) + 1}: all bytes and {ENDOFTEXT}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[ENDOFTEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": ENDOFTEXT,
        "eos_token": ENDOFTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return describe(str(folder), folder / "tokenizer.json")


def _read(file: Path) -> Any:
    tokenizers = need("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{file}: not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _end_of_document(name: str, file: Path, vocabulary: dict[str, int], asked: str | None) -> str | None:
    if asked is not None:
        if asked not in vocabulary:
            raise UserError(f"--eod-token {asked}: not in the vocabulary of {name}")
        return asked
    config = file.with_name("tokenizer_config.json")
    if config.is_file():
        try:
            token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        except json.JSONDecodeError as error:
            raise UserError(f"{config}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
        token = token.get("content") if isinstance(token, dict) else token
        if token in vocabulary:
            return str(token)
    return next((token for token in USUAL_ENDS if token in vocabulary), None)


def _download(name: str) -> Path:
    hub = need("huggingface_hub", "huggingface_hub")
    try:
        file = Path(hub.hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # network, missing repository, no access: the hub's own words say which
        raise UserError(
            f"tokenizer {name}: no such folder, and the hub does not give it: {_first_line(error)}"
        ) from error
    if hub.file_exists(name, "tokenizer_config.json"):
        hub.hf_hub_download(name, "tokenizer_config.json")
    return file


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
