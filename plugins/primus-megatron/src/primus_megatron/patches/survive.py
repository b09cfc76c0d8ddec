"""Stop when asked to, and act on bad losses, at the places where Megatron's training loop decides such things."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from primus_core.run.context import Run

type Function = Callable[..., Any]


class _LeftOut(Exception):
    """The update of this step is not made."""


class _Guard:
    """Looks at the loss of each step before its update; one small all-reduce a step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.step = 0
        self._training = False
        self._sum = self._zero()

    @staticmethod
    def _zero() -> torch.Tensor:
        return torch.zeros(2, dtype=torch.float64, device=torch.cuda.current_device())

    def add(self, total: torch.Tensor, tokens: torch.Tensor) -> None:
        """The loss of a micro batch, summed over its tokens, and their number."""
        if self._training:
            self._sum += torch.stack([total.detach().double(), tokens.double()])

    def judge(self) -> None:
        """Raises ``BadLoss`` or ``_LeftOut``, on all ranks alike."""
        torch.distributed.all_reduce(self._sum)
        total, tokens = self._sum.tolist()
        self._sum = self._zero()
        self._act(self.run.recovery.check(self.step, total / tokens if tokens else math.nan))

    def judge_norm(self, norm: float) -> None:
        if not math.isfinite(norm):
            self._act(self.run.recovery.decide(self.step, f"the norm of its gradients is {norm}"))

    def _act(self, wrong: str | None) -> None:
        if wrong:
            self.run.note(f"step {self.step} is left out: {wrong}")
            raise _LeftOut

    @contextmanager
    def over(self, optimizer: Any) -> Iterator[None]:
        """Stand before the updates of an optimizer."""
        prepare, norm, step = optimizer.prepare_grads, optimizer.get_grad_norm, optimizer.step
        before = dict(vars(optimizer))

        def prepare_grads() -> Any:
            found = prepare()
            self.judge()
            return found

        def get_grad_norm(*args: Any, **kwargs: Any) -> Any:
            value = norm(*args, **kwargs)
            self.judge_norm(float(value))
            return value

        def guarded() -> Any:
            try:
                return step()
            except _LeftOut:
                return False, None, None

        optimizer.prepare_grads, optimizer.get_grad_norm, optimizer.step = prepare_grads, get_grad_norm, guarded
        self._training = True
        try:
            yield
        finally:
            self._training = False
            for name in ("prepare_grads", "get_grad_norm", "step"):
                delattr(optimizer, name)
                if name in before:
                    setattr(optimizer, name, before[name])


@functools.cache
def guard(run: Run) -> _Guard | None:
    """What judges the losses of a run; None where the engine is left to itself."""
    return _Guard(run) if run.recovery.on_bad_loss else None


def train_step(original: Function, run: Run) -> Function:
    @functools.wraps(original)
    def wrapped(forward_step: Any, data: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        judge = guard(run)
        if judge is None or optimizer is None:
            return original(forward_step, data, model, optimizer, *args, **kwargs)
        judge.step = kwargs["iteration"] + 1
        with judge.over(optimizer):
            return original(forward_step, data, model, optimizer, *args, **kwargs)

    return wrapped


def checkpoint_and_decide_exit(original: Function, run: Run) -> Function:
    """Ask all ranks whether one of them was told to stop; then save, and leave the loop."""
    from megatron.training import get_args
    from megatron.training.training import save_checkpoint_and_time

    @functools.wraps(original)
    def wrapped(model: Any, optimizer: Any, scheduler: Any, step: int, flops: Any, context: Any, data: Any) -> bool:
        if not _anywhere(run):
            return bool(original(model, optimizer, scheduler, step, flops, context, data))
        if get_args().save:
            save_checkpoint_and_time(step, model, optimizer, scheduler, flops, context, train_data_iterator=data)
        run.note(f"stops after step {step}, as it was asked to")
        return True

    return wrapped


def _anywhere(run: Run) -> bool:
    if run.place.world_size == 1:
        return run.stop_requested
    flag = torch.tensor([int(run.stop_requested)], device=torch.cuda.current_device())
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
