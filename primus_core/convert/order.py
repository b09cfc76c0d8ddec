"""What a converter is asked, and what it answers. Both travel between processes as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

HF = "hf"
"""Hugging Face's format, which every converter knows: a folder with ``config.json`` and ``*.safetensors``."""

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types that weights can be written in, and their names in safetensors files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One conversion. ``format`` is the backend's own name for a checkpoint of its engine, ``hf`` or another that it
    writes. ``output`` is an empty folder, which the user sees only once it is complete.
    """

    source: Path
    format: str
    output: Path
    backend: str
    dtype: str | None = None
    """None: as they are."""
    shard_size: int = 5_000_000_000
    """Largest size of a file, in bytes, where the format has several."""
    model: str | None = None
    config: Mapping[str, Any] | None = None
    """Parameters of an experiment that the model must fit, plain; ``origins`` says where each was written."""
    origins: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def read(cls, text: str) -> Order:
        data = json.loads(text)
        return cls(**data | {name: Path(data[name]) for name in ("source", "output")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A checkpoint's logits for ``tokens``, [batch, tokens], by the engine's own model in float32.

    They are written to ``output``, a safetensors file, as ``logits`` of [batch, tokens, vocabulary, with or without
    padding].
    """

    source: Path
    tokens: list[list[int]]
    output: Path

    def text(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def read(cls, text: str) -> Forward:
        data = json.loads(text)
        return cls(**data | {name: Path(data[name]) for name in ("source", "output")})


@dataclass(slots=True, kw_only=True)
class Report:
    """What was converted. Names of tensors are the source's; with any that does not fit, nothing is kept."""

    tensors: int = 0
    parameters: int = 0
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    """Each with both shapes."""
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not (self.missing or self.extra or self.mismatched)

    @property
    def summary(self) -> str:
        return f"{len(self.missing)} missing, {len(self.extra)} extra, {len(self.mismatched)} shape mismatches"

    def problems(self) -> list[tuple[Literal["missing", "extra", "shape"], str]]:
        """Every tensor that does not fit, and how."""
        return [
            *(("missing", name) for name in self.missing),
            *(("extra", name) for name in self.extra),
            *(("shape", text) for text in self.mismatched),
        ]

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Report:
        return cls(**json.loads(text))
