"""The tokenizer that goes with a converted model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from primus_core.convert.carry_out import check_vocabulary
from primus_core.errors import UserError

VOCABULARIES = {"bpe": {"a": 0, "b": 1, "c": 2}, "unigram": [["a", 0.0], ["b", -1.0], ["c", -2.0]]}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_more_tokens_than_the_model_has(kind: str, tmp_path: Path) -> None:
    content = {"model": {"vocab": VOCABULARIES[kind]}, "added_tokens": [{"id": 4, "content": "<end>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    for rows, fits in ((5, True), (8, True), (4, False)):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
        if fits:
            check_vocabulary(tmp_path, tmp_path)
            continue
        with pytest.raises(UserError, match="has 5 tokens and the model 4: it was trained with another one"):
            check_vocabulary(tmp_path, tmp_path)


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(UserError, match=r"tokenizer\.json: is damaged: 'vocab'"):
        check_vocabulary(tmp_path, tmp_path)
