"""What the command line asks of the process that holds the model; travels as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

DTYPES = ("float32", "bfloat16", "float16")
GUIDE_TASKS = ("arc_easy", "arc_challenge", "hellaswag", "mmlu", "openbookqa", "piqa", "race", "winogrande")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrder(_Order):
    """A model's folder and how to load it. All paths are absolute."""

    model: str
    tokenizer: str
    """A folder; the model's own where none was named."""
    dtype: str | None
    """None: as the weights are."""
    device: str | None
    """None: an accelerator where there is one."""
    trust: bool
    """Whether code that lies beside the weights may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrder(ModelOrder):
    text_file: str | None
    prompt: str
    top: int
    tokens: int
    """Of each of two rows whose logits are kept in ``logits``."""
    logits: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOrder(_Order):
    """Two files of logits, and the size of the vocabulary that both have at least."""

    one: str
    other: str
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOrder(ModelOrder):
    tasks: list[str]
    include: list[str]
    data: str | None
    batch_size: str
    limit: float | None
    max_length: int | None
    num_fewshot: int | None
    apply_chat_template: bool
    seed: int
    samples: str | None
    """A folder for what the model was asked and what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder(ModelOrder):
    system: str | None
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksOrder(_Order):
    tasks: list[str]
    include: list[str]
    output: str


def answer(values: dict[str, Any]) -> str:
    return json.dumps(values)
