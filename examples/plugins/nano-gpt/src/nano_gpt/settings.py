"""All that can be set, with defaults; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``data`` is a file whose bytes are the tokens; without one, tokens are made up. ``save_interval`` 0: never."""

    layers: int = 2
    heads: int = 2
    width: int = 32
    context: int = 32
    steps: int = 20
    batch_size: int = 4
    lr: float = 1e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 1234
    save_interval: int = 0
    data: str | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
