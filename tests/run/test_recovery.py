from __future__ import annotations

import math

import pytest

from primus_core.errors import BadLoss
from primus_core.run.recovery import Recovery


def test_nothing_is_judged_unless_asked_for():
    recovery = Recovery.of({})
    assert recovery.check(1, math.nan) is None
    assert (recovery.restarts, recovery.skip_steps) == (0, frozenset())


def test_what_workers_are_told():
    environ = {
        "PRIMUS_RESTARTS": "2",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "PRIMUS_SKIP_STEPS": "5,9",
        "PRIMUS_ON_BAD_LOSS": "skip",
        "PRIMUS_LOSS_SPIKE": "3",
    }
    recovery = Recovery.of(environ)
    assert (recovery.restarts, recovery.skip_steps) == (3, {5, 9})
    assert (recovery.on_bad_loss, recovery.spike) == ("skip", 3.0)


@pytest.mark.parametrize("policy", ["stop", "rollback"])
@pytest.mark.parametrize(("loss", "words"), [(math.nan, "is nan"), (math.inf, "is inf")])
def test_a_loss_that_is_not_finite_ends_the_attempt(policy, loss, words):
    with pytest.raises(BadLoss, match=f"^step 7: the loss {words}$"):
        Recovery(on_bad_loss=policy).check(7, loss)


def test_a_jump_is_bad_once_the_usual_is_known():
    recovery = Recovery(on_bad_loss="skip", spike=3.0)
    assert recovery.check(1, 100.0) is None
    for step in range(2, 12):
        assert recovery.check(step, 2.0) is None
    assert recovery.check(12, 6.5) == "the loss jumped to 6.5, from about 2"
    assert recovery.check(13, 5.9) is None
