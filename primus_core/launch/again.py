"""Whether a run that failed is started again, as a new attempt that goes on from the last complete checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from primus_core.errors import ExitCode
from primus_core.launch.plan import Plan
from primus_core.plugins.records import EnvVar
from primus_core.run import failure, heartbeat, recovery

_LOOP = 3
"""Failures at one step that make a crash loop."""
_ROLLBACKS = 3


@dataclass(slots=True)
class Again:
    """Counts attempts. ``left``: how many more there may be; ``say`` tells what was decided."""

    left: int
    rolls_back: bool
    say: Callable[[str], None]
    count: int = 0
    skip: set[int] = field(default_factory=set)
    reached: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Mapping[str, Any], say: Callable[[str], None]) -> Again:
        rolls_back = settings.get("on_bad_loss") == "rollback"
        return cls(settings.get("restart", _ROLLBACKS if rolls_back else 0), rolls_back, say)

    def applied(self, plan: Plan) -> Plan:
        """The plan with what the workers of this attempt need to know."""
        told = {recovery.RESTARTS: str(self.count), recovery.SKIP: ",".join(map(str, sorted(self.skip)))}
        origin = "primus: a restart"
        more = tuple(EnvVar(name=name, value=value, origin=origin) for name, value in told.items() if value)
        return replace(plan, env=(*plan.env, *more)) if self.count else plan

    def wanted(self, attempt: Path, code: ExitCode) -> bool:
        """Whether there is to be one more attempt after this one."""
        if code not in (ExitCode.TRAINING_FAILED, ExitCode.HANG) or _interrupted(attempt):
            return False
        if not self.left:
            if self.count:
                self.say(f"failed {self.count + 1} times; not started again")
            return False
        step = max((state["step"] or 0 for state in heartbeat.read_all(attempt / "ranks").values()), default=0)
        self.reached.append(step)
        bad = _bad_step(attempt)
        if bad is not None and not self.rolls_back:
            self.say("not started again: the loss would be as bad")
            return False
        if bad is not None:
            self.skip.add(bad)
        if self.reached[-_LOOP:] == [step] * _LOOP:
            self.say(f"failed {_LOOP} times at step {step}; not started again")
            return False
        self.left -= 1
        self.count += 1
        without = f", without step {bad}" if bad is not None else ""
        self.say(f"restart {self.count}, from the last complete checkpoint{without}; {self.left} left")
        return True


def _interrupted(attempt: Path) -> bool:
    """Also where the result could not be written: the disk of the next attempt would be as full."""
    try:
        result = json.loads((attempt / "result.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return True
    return str(result.get("root_cause") or "").startswith("interrupted")


def _bad_step(attempt: Path) -> int | None:
    for error in failure.read_all(attempt / "errors").values():
        if error.get("kind") == "BadLoss" and (match := re.match(r"step (\d+):", error["error"])):
            return int(match[1])
    return None
