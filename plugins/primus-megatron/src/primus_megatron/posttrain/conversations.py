"""Records of fine-tuning data to text, with the parts that are learnt. Imports neither torch nor the engine.

A record says by its keys what it is:

- ``{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}``
- ``{"instruction": "...", "input": "...", "output": "..."}``, ``input`` optional
- ``{"prompt": "...", "completion": "..."}``
- ``{"context": "...", "question": "...", "answers": {"text": ["..."]}}``, as SQuAD has it

Learnt is what the assistant says, with the token that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from primus_core.data.sources import is_unicode

FORMATS = ("alpaca", "chat", "squad")
ROLES = ("system", "user", "assistant", "tool")

type Message = dict[str, str]


class BadRecord(Exception):
    """What is wrong with a record."""


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer of ``transformers``."""

    chat_template: Any
    eos_token: str | None

    def apply_chat_template(self, conversation: Sequence[Message], **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a sample's text."""

    text: str
    learnt: bool


def parts(record: Mapping[str, Any], layout: str, tokenizer: ChatTokenizer) -> list[Part]:
    """The text of one record. ``layout`` is one of ``FORMATS``.

    Messages are laid out by the tokenizer's own chat template, else as ``### User:`` and ``### Assistant:``. So are
    instructions and questions in the layout ``chat``; in the others they are ``### Instruction:``, ``### Input:``,
    ``### Response:``. Prompt and completion are taken as they are. Raises ``BadRecord``.
    """
    if "messages" in record:
        return _chat(_messages(record["messages"]), tokenizer)
    if "instruction" in record:
        prompt, more, answer = _text(record, "instruction"), _text(record, "input", ""), _text(record, "output")
    elif "question" in record:
        prompt, more, answer = _text(record, "question"), _text(record, "context", ""), _answer(record)
    elif "prompt" in record:
        return _pair(_text(record, "prompt"), _text(record, "completion"), tokenizer)
    else:
        names = ", ".join(map(repr, [*record][:8])) or "none"
        raise BadRecord(f"none of the keys 'messages', 'instruction', 'prompt', 'question'; there are {names}")
    if layout == "chat":
        content = f"{prompt}\n\n{more}" if more else prompt
        return _chat([_message("user", content), _message("assistant", answer)], tokenizer)
    given = f"### Input:\n{more}\n\n" if more else ""
    return _pair(f"### Instruction:\n{prompt}\n\n{given}### Response:\n", answer, tokenizer)


def _pair(prompt: str, answer: str, tokenizer: ChatTokenizer) -> list[Part]:
    return [Part(prompt, False), Part(answer + (tokenizer.eos_token or ""), True)]


def _chat(messages: list[Message], tokenizer: ChatTokenizer) -> list[Part]:
    return _by_template(messages, tokenizer) if tokenizer.chat_template else _by_default(messages, tokenizer)


def _by_default(messages: list[Message], tokenizer: ChatTokenizer) -> list[Part]:
    found = []
    for message in messages:
        role, content = message["role"], message["content"]
        found.append(Part(f"### {role.capitalize()}:\n", False))
        if role == "assistant":
            found.append(Part(content + (tokenizer.eos_token or ""), True))
            found.append(Part("\n\n", False))
        else:
            found.append(Part(content + "\n\n", False))
    return found


def _by_template(messages: list[Message], tokenizer: ChatTokenizer) -> list[Part]:
    """The tokenizer's own template; learnt is what each assistant's message adds behind its generation prompt."""
    whole = _rendered(messages, tokenizer)
    found: list[Part] = []
    at = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _rendered(messages[:number], tokenizer, add_generation_prompt=True)
        after = _rendered(messages[: number + 1], tokenizer)
        if not (after.startswith(before) and whole.startswith(after)):
            raise BadRecord(
                "the chat template of the tokenizer writes earlier messages differently when later ones follow, "
                "so what is learnt cannot be told; give each answer in a record of its own"
            )
        found += [Part(whole[at : len(before)], False), Part(whole[len(before) : len(after)], True)]
        at = len(after)
    return [*found, Part(whole[at:], False)]


def _rendered(messages: list[Message], tokenizer: ChatTokenizer, **options: Any) -> str:
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # a template may raise what it likes, about the order of roles for instance
        raise BadRecord(f"the chat template of the tokenizer refuses it: {error}") from error
    return text


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise BadRecord("'messages' is not a list of messages")
    for number, message in enumerate(value, 1):
        if not isinstance(message, dict):
            raise BadRecord(f"message {number} is not an object with 'role' and 'content'")
        role = message.get("role")
        if role not in ROLES:
            raise BadRecord(f"message {number}: 'role' is {role!r}, not one of {', '.join(ROLES)}")
        _text(message, "content", where=f"message {number}: ")
    if all(message["role"] != "assistant" for message in value):
        raise BadRecord("no message of the assistant: nothing to learn")
    return value


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _answer(record: Mapping[str, Any]) -> str:
    answers = record.get("answers")
    texts = answers.get("text") if isinstance(answers, dict) else None
    if not isinstance(texts, list) or not texts:
        raise BadRecord("'answers' is not an object with a list of texts under 'text'")
    return _text({"answers.text[0]": texts[0]}, "answers.text[0]")


def _text(record: Mapping[str, Any], key: str, default: str | None = None, where: str = "") -> str:
    value = record.get(key, default)
    if value is None:
        raise BadRecord(f"{where}no {key!r}")
    if not isinstance(value, str):
        raise BadRecord(f"{where}{key!r} is not a text but {value!r:.40}")
    if not is_unicode(value):
        raise BadRecord(f"{where}{key!r} contains half of a surrogate pair, which is no text")
    return value
