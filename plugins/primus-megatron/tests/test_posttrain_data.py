"""Conversations to tokens and packed sequences: what is learnt, what is refused, and where."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.utils import Split
from transformers import AutoTokenizer

from primus_core.data.tokenizer import train_tokenizer
from primus_core.errors import EnvironmentFault, UserError
from primus_megatron.posttrain.dataset import FineTuningDataset
from primus_megatron.posttrain.samples import Samples, load, pack

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
        {"role": "assistant", "content": "Four."},
    ]
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(topics.values(), 600, folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def chatty(tokenizer: Any) -> Any:
    """The same with a chat template of its own."""
    tokenizer.chat_template = CHATML
    yield tokenizer
    tokenizer.chat_template = None


def samples(folder: Path, tokenizer: Any, *records: Any, layout: str = "alpaca", longest: int = 1000) -> Samples:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return load([str(path)], "train", layout, tokenizer, longest, folder / "cache")


def shown(samples: Samples, tokenizer: Any, number: int = 0) -> tuple[str, str]:
    """The text of a sample, and of what is learnt in it."""
    part = slice(*samples.ends[number : number + 2])
    tokens, learnt = samples.tokens[part], samples.learnt[part]
    return tokenizer.decode(tokens), tokenizer.decode(tokens[learnt])


def test_messages_in_the_default_layout(tmp_path: Path, tokenizer: Any):
    assert shown(samples(tmp_path, tokenizer, MESSAGES), tokenizer) == (
        "### System:\nBe short.\n\n### User:\nOne?\n\n### Assistant:\nTwo.<|endoftext|>\n\n"
        "### User:\nThree?\n\n### Assistant:\nFour.<|endoftext|>\n\n",
        "Two.<|endoftext|>Four.<|endoftext|>",
    )


def test_messages_in_the_tokenizers_own_layout(tmp_path: Path, chatty: Any):
    text, learnt = shown(samples(tmp_path, chatty, MESSAGES), chatty)
    assert text == chatty.apply_chat_template(MESSAGES["messages"], tokenize=False)
    assert learnt == "Two.<|im_end|>\nFour.<|im_end|>\n"


@pytest.mark.parametrize(
    ("record", "text", "learnt"),
    [
        (
            {"instruction": "Add.", "input": "1 2", "output": "3"},
            "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n",
            "3<|endoftext|>",
        ),
        ({"instruction": "Say.", "output": "Yes"}, "### Instruction:\nSay.\n\n### Response:\n", "Yes<|endoftext|>"),
        ({"prompt": "1 + 1 =", "completion": " 2"}, "1 + 1 =", " 2<|endoftext|>"),
        (
            {"context": "It is 5.", "question": "When?", "answers": {"text": ["5", "five"]}},
            "### Instruction:\nWhen?\n\n### Input:\nIt is 5.\n\n### Response:\n",
            "5<|endoftext|>",
        ),
    ],
)
def test_other_records(tmp_path: Path, tokenizer: Any, record: Any, text: str, learnt: str):
    assert shown(samples(tmp_path, tokenizer, record), tokenizer) == (text + learnt, learnt)


def test_instructions_as_chat(tmp_path: Path, chatty: Any):
    text, learnt = shown(
        samples(tmp_path, chatty, {"instruction": "A", "input": "B", "output": "C"}, layout="chat"), chatty
    )
    assert text == "<|im_start|>user\nA\n\nB<|im_end|>\n<|im_start|>assistant\nC<|im_end|>\n"
    assert learnt == "C<|im_end|>\n"


def test_a_first_token_that_the_tokenizer_adds(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    from tokenizers.processors import TemplateProcessing

    backend = tokenizer.backend_tokenizer
    monkeypatch.setattr(
        backend, "post_processor", TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    )
    try:
        found = samples(tmp_path, tokenizer, {"prompt": "a", "completion": "b"})
    finally:
        backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    assert shown(found, tokenizer) == ("<|endoftext|>ab<|endoftext|>", "b<|endoftext|>")


def test_long_samples_are_cut_and_those_without_anything_to_learn_dropped(tmp_path: Path, tokenizer: Any):
    long = {"prompt": "word " * 50, "completion": "x"}
    short = {"prompt": "a", "completion": "word " * 50}
    found = samples(tmp_path, tokenizer, long, short, longest=20)
    assert (len(found), found.dropped, found.lengths.tolist()) == (1, 1, [20])
    with pytest.raises(UserError, match="no samples; 1 have nothing to learn"):
        samples(tmp_path, tokenizer, long, longest=20)


BAD = [
    ("{", "not JSON: Expecting property name enclosed in double quotes"),
    ("[]", "not a JSON object"),
    ('{"text": "x"}', "none of the keys 'messages', 'instruction', 'prompt', 'question'; there are 'text'"),
    ('{"prompt": "x"}', "no 'completion'"),
    ('{"instruction": "x", "output": 3}', "'output' is not a text but 3"),
    ('{"messages": []}', "'messages' is not a list of messages"),
    ('{"messages": ["x"]}', "message 1 is not an object"),
    ('{"messages": [{"role": "bot", "content": "x"}]}', "message 1: 'role' is 'bot', not one of system, user"),
    ('{"messages": [{"role": "user", "content": "x"}]}', "no message of the assistant"),
]


def test_bad_records_have_a_place(tmp_path: Path, tokenizer: Any):
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line, _ in BAD))
    with pytest.raises(UserError) as caught:
        load([str(path)], "train", "alpaca", tokenizer, 100, tmp_path / "cache")
    said = str(caught.value).splitlines()
    assert len(said) == len(BAD)
    for number, (line, (_, message)) in enumerate(zip(said, BAD, strict=True), 1):
        assert line.startswith(f"{path}:{number}:") and message in line
    assert not list(tmp_path.glob("cache/*"))


def test_other_places(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    def ask(name: str) -> None:
        load([name], "train", "alpaca", tokenizer, 100, tmp_path / "cache")

    with pytest.raises(UserError, match=r"missing\.jsonl: no such file"):
        ask(str(tmp_path / "missing.jsonl"))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"a\.txt: fine-tuning reads JSON lines"):
        ask(str(tmp_path / "a.txt"))
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(EnvironmentFault, match="pip install datasets"):
        ask("tatsu-lab/alpaca")


def test_a_template_that_rewrites_history_is_refused(tmp_path: Path, chatty: Any):
    chatty.chat_template = "{{ messages | length }}" + CHATML
    with pytest.raises(UserError, match=r"data\.jsonl:1:1: the chat template .* writes earlier messages differently"):
        samples(tmp_path, chatty, MESSAGES)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_packs_hold_each_sample_once_and_no_more_than_they_can(lengths: list[int]):
    packs = pack(np.array(lengths), 40)
    assert sorted(number for one in packs for number in one) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in one) <= 40 for one in packs)
    assert len(packs) <= 2 * -(-sum(lengths) // 40)


def test_a_packed_sequence(tmp_path: Path, tokenizer: Any):
    found = samples(tmp_path, tokenizer, *({"prompt": p, "completion": c} for p, c in (("ab", "cd"), ("e", "f"))))
    made = FineTuningDataset(
        found, seq_length=16, packed=True, pad=0, seed=1, length=0, split=Split.train
    ).sequence([0, 1])  # fmt: skip
    first, second = (found.tokens[slice(*found.ends[n : n + 2])].tolist() for n in (0, 1))
    a, b = len(first) - 1, len(second) - 1
    assert made["tokens"].tolist() == [*first[:-1], *second[:-1], *[0] * (16 - a - b)]
    assert made["labels"].tolist() == [*first[1:], *second[1:], *[0] * (16 - a - b)]
    assert made["position_ids"].tolist() == [*range(a), *range(b), *range(16 - a - b)]
    assert made["cu_seqlens"].tolist() == [0, a, a + b, *[16] * 14]
    assert made["max_seqlen"] == 16 - a - b
    learnt = [*found.learnt[1 : found.ends[1]], *found.learnt[found.ends[1] + 1 : found.ends[2]]]
    assert made["loss_mask"].tolist() == [float(flag) for flag in learnt] + [0.0] * (16 - a - b)


def test_each_round_has_all_sequences_in_another_order(tmp_path: Path, tokenizer: Any):
    found = samples(tmp_path, tokenizer, *({"prompt": str(n), "completion": "x"} for n in range(9)))
    dataset = FineTuningDataset(
        found, seq_length=16, packed=False, pad=0, seed=1, length=27, split=Split.train
    )  # fmt: skip
    rounds = [[dataset[i]["tokens"].tolist() for i in range(start, start + 9)] for start in (0, 9, 18)]
    assert rounds[0] != rounds[1] != rounds[2]
    assert sorted(rounds[0]) == sorted(rounds[1]) == sorted(rounds[2])
    assert dataset[3]["tokens"].tolist() == rounds[0][3]
