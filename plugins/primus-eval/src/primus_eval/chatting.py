"""``primus chat`` in its own process: answers token by token, from a cache that is kept from turn to turn."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import TextStreamer, set_seed

from primus_core.errors import UserError
from primus_eval.loading import is_out_of_memory, load, out_of_memory, require_complete
from primus_eval.orders import ChatOrder, answer

_HELP = "An empty line or Ctrl-D ends, /new begins anew."


class Conversation:
    """What was said so far, as messages where the tokenizer has a template for them, and the cache of its tokens."""

    def __init__(self, model: Any, words: Any, order: ChatOrder) -> None:
        self.model, self.words, self.order = model, words, order
        self.begin()

    def begin(self) -> None:
        self.messages = [{"role": "system", "content": self.order.system}] if self.order.system else []
        self.seen: list[int] = []
        self.cache: Any = None

    def answer(self, text: str, streamer: TextStreamer | None) -> str:
        """The answer to one more turn. A model without a template goes on with the text itself."""
        ids = self._ids(text)
        known = len(self.seen) < len(ids) and ids[: len(self.seen)] == self.seen
        cache = {"cache": self.cache} if known and self.cache is not None else {}
        output = self._generate(torch.tensor([ids], device=self.model.device), cache, streamer)
        tokens = output.sequences[0].tolist()
        self.cache = output.get("cache", output.get("past_key_values"))
        self.seen = tokens[:-1]  # the last token was never an input
        said = self.words.decode(tokens[len(ids) :], skip_special_tokens=True)
        if self.words.chat_template:
            self.messages.append({"role": "assistant", "content": said})
        return said

    def _ids(self, text: str) -> list[int]:
        if not self.words.chat_template:
            self.begin()
            prompt = f"{self.order.system}\n{text}" if self.order.system else text
            return list(self.words(prompt)["input_ids"])
        self.messages.append({"role": "user", "content": text})
        rendered = self.words.apply_chat_template(self.messages, add_generation_prompt=True, return_dict=True)
        return list(rendered["input_ids"])

    def _generate(self, ids: torch.Tensor, cache: dict[str, Any], streamer: TextStreamer | None) -> Any:
        order = self.order
        sampling = {"do_sample": True, "temperature": order.temperature, "top_p": order.top_p, "top_k": order.top_k}
        with torch.inference_mode():
            return self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=order.max_new_tokens,
                streamer=streamer,
                return_dict_in_generate=True,
                pad_token_id=self.words.pad_token_id if self.words.pad_token_id is not None else 0,
                eos_token_id=self.words.eos_token_id,
                **(sampling if order.temperature else {"do_sample": False}),
                **cache,
            )


def chat(text: str) -> str:
    order = ChatOrder.read(text)
    loaded = load(order)
    require_complete(loaded, order.model)
    if order.seed is not None:
        set_seed(order.seed)
    conversation = Conversation(loaded.model, loaded.tokenizer, order)
    try:
        turns = _talk(conversation) if sys.stdin.isatty() else _pipe(conversation, order)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise out_of_memory(order) from error
        raise
    return answer({"turns": turns})


def _pipe(conversation: Conversation, order: ChatOrder) -> int:
    """Each line of standard input is a conversation of its own, and gets one line."""
    turns = 0
    for number, line in enumerate(sys.stdin, 1):
        prompt = line.rstrip("\n")
        if not prompt:
            raise UserError(f"standard input, line {number}: is empty")
        conversation.begin()
        said = conversation.answer(prompt, None)
        print(json.dumps({"prompt": prompt, "answer": said}) if order.json else said.replace("\n", "\\n"), flush=True)
        turns += 1
    return turns


def _talk(conversation: Conversation) -> int:
    kind = (
        "" if conversation.words.chat_template else " The model has no chat template: it goes on with what you write."
    )
    print(_HELP + kind, file=sys.stderr)
    streamer = TextStreamer(conversation.words, skip_prompt=True, skip_special_tokens=True)
    turns = 0
    while prompt := _asked():
        if prompt == "/new":
            conversation.begin()
            continue
        conversation.answer(prompt, streamer)
        turns += 1
    return turns


def _asked() -> str:
    try:
        return input("> ")
    except EOFError:
        return ""
