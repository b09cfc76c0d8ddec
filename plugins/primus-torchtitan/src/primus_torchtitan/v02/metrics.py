"""What the engine measures, told to primus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.tools.utils import device_module, device_type

if TYPE_CHECKING:
    from torchtitan.config import JobConfig
    from torchtitan.distributed import ParallelDims

    from primus_core.run.context import Run


class Metrics(MetricsProcessor):  # type: ignore[misc]
    """The engine's own metrics, and the same for primus.

    Pauses, for checkpoints and validation, count for neither.
    """

    def __init__(self, run: Run, job: JobConfig, dims: ParallelDims) -> None:
        super().__init__(job, dims)
        self.run = run
        self.step = 0
        self._memory = 0

    def start(self, step: int) -> None:
        """Measure from now on."""
        self.step = step
        self.time_last_log = time.perf_counter()

    @contextmanager
    def pause(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.time_last_log += time.perf_counter() - began

    def log(
        self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, extra_metrics: Any = None
    ) -> None:
        if device_type != "cpu":
            device_module.synchronize()
        seconds = time.perf_counter() - self.time_last_log
        dims = self.parallel_dims
        loss = self._on_last_stage(global_avg_loss)
        per_device = self.ntokens_since_last_log / seconds / dims.non_data_parallel_size
        peak = self.run.devices[0].peak_flops.get("bf16") if self.run.devices else None
        flops = self.num_flops_per_token * per_device
        self._memory = max(self._memory, device_module.memory_stats().get("reserved_bytes.all.peak", 0))
        self.run.report_step(
            step,
            {
                "loss": loss,
                "grad_norm": grad_norm,
                "lr": extra_metrics["lr"],
                "tokens": int(extra_metrics["n_tokens_seen"]),
                "step_time": seconds / max(step - self.step, 1),
                "tokens_per_s": per_device * dims.world_size,
                "tokens_per_s_per_device": per_device,
                "tflops_per_device": flops / 1e12,
                "mfu": flops / peak if peak else None,
                "memory": self._memory,
                "data_time": sum(self.data_loading_times) / max(len(self.data_loading_times), 1),
            },
        )
        self.step = step
        super().log(step, loss, global_max_loss, grad_norm, extra_metrics)

    def log_validation(self, loss: float, step: int, extra_metrics: Any = None) -> None:
        loss = self._on_last_stage(loss)
        self.run.report_eval(step, {"loss": loss})
        began, tokens = self.time_last_log, self.ntokens_since_last_log
        super().log_validation(loss, step, extra_metrics)
        self.time_last_log, self.ntokens_since_last_log = began, tokens

    def _on_last_stage(self, loss: float) -> float:
        """The loss that the last pipeline stage knows, on all; others hold -1."""
        mesh = self.parallel_dims.get_optional_mesh("pp")
        if mesh is None:
            return loss
        value = torch.tensor(loss, device=device_type)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX, mesh.get_group())
        return float(value)
