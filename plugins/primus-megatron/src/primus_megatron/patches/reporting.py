"""The life of a run as Megatron's training loop lives it, told to primus. Changes nothing in what is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from primus_megatron.checkpoints import folder_of, latest, prune, seal
from primus_megatron.metrics import Meter

if TYPE_CHECKING:
    import argparse

    from primus_core.run.context import Run

type Function = Callable[..., Any]


class _Reporter:
    """What the wrapped functions share."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.meter = Meter()
        self.split = "valid"
        self.step = 0
        self.saved: int | None = None

    @property
    def args(self) -> argparse.Namespace:
        from megatron.training import get_args

        return get_args()

    def started(self) -> None:
        self.saved = latest(self.args.save) if self.args.save else None
        self.run.expect(self.args.train_iters, self.args.iteration)
        self.meter.start()

    def stepped(self, step: int, more: Mapping[str, float | None]) -> None:
        from megatron.core.num_microbatches_calculator import get_num_microbatches
        from megatron.training.training import num_floating_point_operations

        args, run = self.args, self.run
        values = self.meter.read()
        batch = args.micro_batch_size * args.data_parallel_size * get_num_microbatches()
        tokens_per_s = batch * args.seq_length / values["step_time"]
        flops = num_floating_point_operations(args, batch) / values["step_time"] / args.world_size
        peak = run.devices[0].peak_flops.get(_DTYPES[args.params_dtype]) if run.devices else None
        run.report_step(
            step,
            {
                "loss": None,
                **values,
                **more,
                "tokens": args.consumed_train_samples * args.seq_length,
                "tokens_per_s": tokens_per_s,
                "tokens_per_s_per_device": tokens_per_s / args.world_size,
                "tflops_per_device": flops / 1e12,
                "mfu": flops / peak if peak else None,
                "memory": torch.cuda.max_memory_allocated(),
            },
        )

    def announce(self) -> None:
        """Tell of a checkpoint that became complete since the last time."""
        step = latest(self.args.save) if self.args.save else None
        if step is not None and step != self.saved:
            self.saved = step
            if self.run.is_reporter:
                seal(folder_of(self.args.save, step))
                if keep := self.run.config.get("keep_checkpoints"):
                    prune(self.args.save, keep)
            self.run.checkpoint_saved(step, folder_of(self.args.save, step))


_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_reporter = functools.cache(_Reporter)


def train(original: Function, run: Run) -> Function:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _reporter(run).started()
        return original(*args, **kwargs)

    return wrapped


def train_step(original: Function, run: Run) -> Function:
    @functools.wraps(original)
    def wrapped(*args: Any, iteration: int, **kwargs: Any) -> Any:
        run.enter("forward", iteration + 1)
        return original(*args, iteration=iteration, **kwargs)

    return wrapped


def training_log(original: Function, run: Run) -> Function:
    reporter = _reporter(run)

    @functools.wraps(original)
    def wrapped(
        losses: Mapping[str, torch.Tensor],
        total_losses: dict[str, Any],
        lr: float | None,
        step: int,
        loss_scale: float,
        report_memory: bool,
        skipped: int,
        grad_norm: float | None,
        *args: Any,
        is_first_iteration: bool = False,
        **kwargs: Any,
    ) -> Any:
        reporter.meter.step(bool(skipped))
        if not skipped:  # else they may not be finite
            reporter.meter.add(losses)
        result = original(
            losses,
            total_losses,
            lr,
            step,
            loss_scale,
            report_memory,
            skipped,
            grad_norm,
            *args,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        last = step == reporter.args.train_iters
        if is_first_iteration or last or step % reporter.args.log_interval == 0:
            reporter.stepped(step, {"grad_norm": grad_norm, "lr": lr})
        return result

    return wrapped


def expert_losses(original: Function, run: Run) -> Function:
    """Losses that balance experts, which the engine adds up for its own log."""
    meter = _reporter(run).meter

    @functools.wraps(original)
    def wrapped(*args: Any, total_loss_dict: dict[str, torch.Tensor] | None = None, **kwargs: Any) -> Any:
        losses: dict[str, torch.Tensor] = {}
        result = original(*args, total_loss_dict=losses, **kwargs)
        meter.add(losses)
        _add(losses, total_loss_dict)
        return result

    return wrapped


def later_token_losses(original: Function, run: Run) -> Function:
    """Losses of predicting the tokens after the next."""
    meter = _reporter(run).meter

    @functools.wraps(original)
    def wrapped(
        scale: float, step: int, writer: Any, wandb: Any, total_loss_dict: dict[str, torch.Tensor] | None = None
    ) -> None:
        losses: dict[str, torch.Tensor] = {}
        original(scale, step, writer, wandb, losses)
        meter.add({name: value for name, value in losses.items() if name.endswith("loss")})
        _add(losses, total_loss_dict)

    return wrapped


def _add(losses: Mapping[str, torch.Tensor], totals: dict[str, torch.Tensor] | None) -> None:
    if totals is not None:
        totals |= {name: totals[name] + value if name in totals else value for name, value in losses.items()}


def evaluate_and_print_results(original: Function, run: Run) -> Function:
    reporter = _reporter(run)

    @functools.wraps(original)
    def wrapped(prefix: str, forward_step: Any, data: Any, model: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        reporter.split = "test" if prefix.endswith("test set") else "valid"
        reporter.step = step
        run.enter("eval", step)
        with reporter.meter.pause():
            return original(prefix, forward_step, data, model, step, *args, **kwargs)

    return wrapped


def evaluate(original: Function, run: Run) -> Function:
    reporter = _reporter(run)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if losses := result[0]:
            values = {"loss" if name == "lm loss" else name: float(value) for name, value in losses.items()}
            run.report_eval(reporter.step, values, reporter.split)
        return result

    return wrapped


def save_checkpoint(original: Function, run: Run) -> Function:
    reporter = _reporter(run)

    @functools.wraps(original)
    def wrapped(step: int, *args: Any, **kwargs: Any) -> Any:
        run.enter("save", step)
        with reporter.meter.pause():
            result = original(step, *args, **kwargs)
        reporter.announce()
        return result

    return wrapped


def finalize_async_save(original: Function, run: Run) -> Function:
    """A checkpoint that is written in the background becomes complete here."""
    reporter = _reporter(run)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if reporter.args.async_save:
            reporter.announce()
        return result

    return wrapped


def load_checkpoint(original: Function, run: Run) -> Function:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        run.enter("load")
        result = original(*args, **kwargs)
        if result[0]:
            run.note(f"goes on after step {result[0]}")
        return result

    return wrapped
