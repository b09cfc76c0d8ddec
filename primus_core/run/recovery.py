"""What workers are told about failures: which restart this is, what to leave out, what a bad loss is."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from primus_core.errors import BadLoss

type Policy = Literal["stop", "skip", "rollback"]
POLICIES: tuple[Policy, ...] = get_args(Policy.__value__)

RESTARTS = "PRIMUS_RESTARTS"
"""How many attempts of this command went before."""
SKIP = "PRIMUS_SKIP_STEPS"
"""Steps to leave out, with commas between."""
ON_BAD_LOSS = "PRIMUS_ON_BAD_LOSS"
LOSS_SPIKE = "PRIMUS_LOSS_SPIKE"

_REMEMBERED = 32
_ENOUGH = 8


@dataclass(slots=True, kw_only=True)
class Recovery:
    """``spike``: a loss of more than so many times the median of the last ones is bad, too."""

    restarts: int = 0
    skip_steps: frozenset[int] = frozenset()
    on_bad_loss: Policy | None = None
    spike: float | None = None
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Recovery:
        within = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        policies = [policy for policy in POLICIES if policy == environ.get(ON_BAD_LOSS)]
        return cls(
            restarts=int(environ.get(RESTARTS, "0")) + within,
            skip_steps=frozenset(map(int, filter(None, environ.get(SKIP, "").split(",")))),
            on_bad_loss=policies[0] if policies else None,
            spike=float(environ[LOSS_SPIKE]) if LOSS_SPIKE in environ else None,
        )

    def judge(self, loss: float) -> str | None:
        """What is wrong with a loss, in words; None for a good one, which counts for the next ones' judgement."""
        if not math.isfinite(loss):
            return f"the loss is {loss:.4g}"
        if self.spike and len(self._losses) >= _ENOUGH:
            usual = statistics.median(self._losses)
            if loss > self.spike * usual:
                return f"the loss jumped to {loss:.4g}, from about {usual:.4g}"
        self._losses.append(loss)
        return None

    def check(self, step: int, loss: float) -> str | None:
        """What is wrong with the loss of a step, if its update is to be left out for it; None for a good one.

        Raises ``BadLoss`` where a bad one ends the attempt.
        """
        return self.decide(step, self.judge(loss)) if self.on_bad_loss else None

    def decide(self, step: int, wrong: str | None) -> str | None:
        """The same of a judgement that somebody else made."""
        if wrong is not None and self.on_bad_loss != "skip":
            raise BadLoss(f"step {step}: {wrong}")
        return wrong
