"""The CPU in the place of a GPU: what torch's CUDA functions mean where there is none.

The engine asks for ``device="cuda"`` and for the current device's index throughout; here both mean the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")


# --- torch.cuda -------------------------------------------------------------------------------------------------


def nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function with nothing to do. A new one each time: torch's compiler tells functions apart by identity."""
    return lambda *args, **kwargs: None


def current_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """An index, as the engine writes it into ``cuda:0`` and hands it on as a device."""
    return lambda: 0


def device_count(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: 1


def device_properties(original: Callable[..., Any]) -> Callable[..., Any]:
    properties = SimpleNamespace(
        name="cpu",
        major=0,
        minor=0,
        multi_processor_count=os.cpu_count(),
        total_memory=_PAGE * os.sysconf("SC_PHYS_PAGES"),
    )
    return lambda *args, **kwargs: properties


def device_capability(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: (0, 0)


def device_name(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: "cpu"


def false(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: False


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _highest_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """The process's memory, in bytes."""
    return lambda *args, **kwargs: _resident()


def highest_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: _highest_resident()


def memory_info(original: Callable[..., Any]) -> Callable[..., Any]:
    total = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return lambda *args, **kwargs: (_PAGE * os.sysconf("SC_AVPHYS_PAGES"), total)


def memory_stats(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: {
        "allocation.all.current": 0,
        "allocated_bytes.all.current": _resident(),
        "allocated_bytes.all.peak": _highest_resident(),
        "reserved_bytes.all.current": _resident(),
        "reserved_bytes.all.peak": _highest_resident(),
    }


class _Stream:
    """Work on the CPU is done when it was asked for."""

    cuda_stream = stream_id = priority = 0
    device = torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: _Event) -> float:
        """Milliseconds."""
        return 1e3 * (later.seconds - self.seconds)


def stream_type(original: type) -> type:
    return _Stream


def event_type(original: type) -> type:
    return _Event


def current_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    stream = _Stream()
    return lambda *args, **kwargs: stream


def on_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda stream: contextlib.nullcontext(stream)


def get_rng_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """The CPU's generator takes the place of the device's, so that the engine's forked states stay what they are."""
    return lambda *args, **kwargs: torch.get_rng_state()


def set_rng_state(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, *args, **kwargs: torch.set_rng_state(state)


def manual_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seed: torch.default_generator.manual_seed(int(seed))


def tensor_type(original: type) -> type:
    """A CUDA tensor type that makes CPU tensors; it stays a type, since the engine tests instances against it."""
    plain = getattr(torch, original.__name__)

    class Tensor:
        def __new__(cls, *args: Any) -> torch.Tensor:
            return plain(*args)

    return Tensor


# --- tensors ----------------------------------------------------------------------------------------------------


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """A factory that takes a CUDA device for the CPU."""
    from torch.utils._device import _device_constructors

    _device_constructors()  # cached by torch: after this `with torch.device("meta")` still knows the plain factories

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return create


def to(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return original(self, *args, **kwargs)

    return move


def itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """A move to where the tensor or module is already."""
    return lambda self, *args, **kwargs: self


def not_compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` that leaves functions as they are."""

    def compile(model: Callable[..., Any] | None = None, **kwargs: Any) -> Callable[..., Any]:
        return model if model is not None else lambda function: function

    return compile


# --- the engine -------------------------------------------------------------------------------------------------


def initialize_without_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(original, allow_no_cuda=True)


def keep_rng_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws from the CPU's generator and gives back what it drew."""

    @functools.wraps(original)
    def kept(*args: Any, **kwargs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return original(*args, **kwargs)
        finally:
            torch.set_rng_state(state)

    return kept


@contextlib.contextmanager
def _cuda_type_names() -> Iterator[None]:
    plain = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = plain(self, *args, **kwargs)
        return name.replace("torch.", "torch.cuda.", 1) if isinstance(name, str) else name

    torch.Tensor.type = type_  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.type = plain  # type: ignore[method-assign]


def with_cuda_type_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Within this function a tensor calls itself ``torch.cuda.FloatTensor``: the optimizers compare these names."""

    @functools.wraps(original)
    def named(*args: Any, **kwargs: Any) -> Any:
        with _cuda_type_names():
            return original(*args, **kwargs)

    return named


def fork_quietly(original: Callable[..., Any]) -> Callable[..., Any]:
    """Without the warning that the CPU's generator changed: it is the one that is forked."""
    logging.getLogger(original.__module__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())
    return original


def to_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Token counts as numpy arrays where asked for, which the engine makes only of tensors on a GPU."""

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    return move


def scale_then_sum(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gloo has no sum that multiplies first."""

    def prepare(grad_data: torch.Tensor, scaling_factor: float | None, ddp_config: Any) -> Any:
        if scaling_factor is None:
            return torch.distributed.ReduceOp.SUM
        if ddp_config.average_in_collective:
            return torch.distributed.ReduceOp.AVG
        grad_data.mul_(scaling_factor)
        return torch.distributed.ReduceOp.SUM

    return prepare
