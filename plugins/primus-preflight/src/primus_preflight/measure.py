"""Rates of one device and of collectives. Every function is called by all ranks of its group at the same time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

LATENCY_BYTES = 8
_MIB = 2**20


def gemm(device: torch.device, repetitions: int) -> float:
    """FLOP/s of a square matrix product: bfloat16 on a GPU, float32 on a CPU."""
    gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if gpu else (512, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / seconds(lambda: torch.mm(left, right, out=out), device, repetitions)


def copy(device: torch.device, repetitions: int) -> float:
    """Bytes read and written per second by copies within a device's memory."""
    source = torch.ones((1024 if device.type == "cuda" else 32) * _MIB, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repetitions)


def from_host(device: torch.device, repetitions: int) -> float:
    """Bytes per second from pinned memory of the host to a GPU."""
    source = torch.ones(256 * _MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return source.nbytes / seconds(lambda: target.copy_(source, non_blocking=True), device, repetitions)


def all_reduce(group: dist.ProcessGroup, device: torch.device, size: int, repetitions: int) -> float:
    """Seconds of an all-reduce of ``size`` bytes."""
    tensor = torch.ones(max(1, size // 4), device=device)
    return seconds(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group), device, repetitions, group)


def all_to_all(group: dist.ProcessGroup, device: torch.device, size: int, repetitions: int) -> float:
    """Seconds of an all-to-all of ``size`` bytes on each rank."""
    ranks = group.size()
    tensor = torch.ones(max(1, size // 4 // ranks) * ranks, device=device)
    out = torch.empty_like(tensor)
    return seconds(lambda: dist.all_to_all_single(out, tensor, group=group), device, repetitions, group)


def exchange(
    send_to: int, receive_from: int, group: dist.ProcessGroup, device: torch.device, size: int, repetitions: int
) -> float:
    """Seconds to send ``size`` bytes to one rank while as many come from another; its own rank: only take part."""
    tensor = torch.ones(max(1, size // 4), device=device)
    out = torch.empty_like(tensor)

    def once() -> None:
        if send_to == dist.get_rank():
            return
        operations = [dist.P2POp(dist.isend, tensor, send_to), dist.P2POp(dist.irecv, out, receive_from)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return seconds(once, device, repetitions, group)


def bus_factor(test: str, ranks: int) -> float:
    """What each link carries, of a collective's size: the same figure whatever the number of ranks."""
    if test.endswith("allreduce"):
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if test.endswith("alltoall") else 1.0


def seconds(
    call: Callable[[], object], device: torch.device, repetitions: int, group: dist.ProcessGroup | None = None
) -> float:
    """The median of several calls, after two to warm up; ranks of a group start each together."""
    times: list[float] = []
    for repetition in range(repetitions + 2):
        _wait(device)
        if group is not None:
            dist.barrier(group, device_ids=[device.index] if device.type == "cuda" else None)
            _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        if repetition >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clock_offset(rank: int, others: Sequence[int], group: dist.ProcessGroup, rounds: int = 10) -> dict[int, float]:
    """On rank 0: seconds by which the clock of each of ``others`` is ahead, as NTP tells it; elsewhere nothing."""
    offsets: dict[int, float] = {}
    stamp = torch.zeros(1, dtype=torch.float64)
    for other in others:
        best = float("inf")
        for _ in range(rounds):
            if rank == 0:
                sent = time.time()
                dist.send(stamp, other, group=group)
                dist.recv(stamp, other, group=group)
                received = time.time()
                if received - sent < best:
                    best, offsets[other] = received - sent, float(stamp) - (sent + received) / 2
            elif rank == other:
                dist.recv(stamp, 0, group=group)
                stamp.fill_(time.time())
                dist.send(stamp, 0, group=group)
    return offsets
