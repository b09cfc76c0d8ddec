"""``primus chat``: answers are what the model itself generates, and the cache goes from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Primus
from transformers import AutoModelForCausalLM, AutoTokenizer

from primus_eval.chatting import Conversation
from primus_eval.loading import load
from primus_eval.orders import ChatOrder

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def order(model: Path, **given: Any) -> ChatOrder:
    values: dict[str, Any] = {
        "model": str(model),
        "tokenizer": str(model),
        "dtype": "float32",
        "device": "cpu",
        "trust": False,
        "system": None,
        "max_new_tokens": 6,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": None,
        "json": False,
    }
    return ChatOrder(**values | given)


def generated(model: Path, prompt: str, count: int = 6, refused: Sequence[int] = ()) -> str:
    """The likeliest continuation, each token computed anew from all before it."""
    network, words = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    start = ids = words(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        for _ in range(count):
            logits = network(ids).logits[:, -1:]
            logits[..., list(refused)] = float("-inf")
            ids = torch.cat([ids, logits.argmax(-1)], 1)
            if ids[0, -1] == words.eos_token_id:
                break
    return str(words.decode(ids[0, start.size(1) :], skip_special_tokens=True))


def test_turns_of_a_conversation_share_a_cache(llama: Path) -> None:
    loaded = load(order(llama))
    loaded.tokenizer.chat_template = TEMPLATE
    words = {number for word, number in loaded.tokenizer.get_vocab().items() if word in ("Ġriver", "Ġwater", "Ġand")}
    refused = sorted(set(range(512)) - words)  # so that the answer is cut into tokens as it was made of them
    loaded.model.generation_config.suppress_tokens = refused
    talk = Conversation(loaded.model, loaded.tokenizer, order(llama, system="Be brief."))
    fed: list[int] = []
    loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].size(1)), with_kwargs=True
    )
    first = talk.answer("A river", None)
    start = len(fed)
    second = talk.answer("A bridge", None)
    history = f"system: Be brief.\nuser: A river\nassistant: {first}\nuser: A bridge\nassistant: "
    assert first == generated(llama, "system: Be brief.\nuser: A river\nassistant: ", refused=refused)
    assert second == generated(llama, history, refused=refused)
    whole = len(loaded.tokenizer(history)["input_ids"])
    assert fed[start] < whole


@pytest.mark.slow
def test_a_pipe_gets_a_line_for_each_line(llama: Path, primus: Primus) -> None:
    done = primus("chat", llama, "--max-new-tokens", "6", "--json", stdin="A river\nThe miller\n")
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [{"prompt": text, "answer": generated(llama, text)} for text in ("A river", "The miller")]
    done = primus("chat", llama, "--max-new-tokens", "2", stdin="A river\n\n")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    assert "standard input, line 2: is empty" in done.stderr
