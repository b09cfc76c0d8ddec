"""What each rank does: look, measure, and tell rank 0, which writes the report. Imported in workers only."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from primus_preflight import facts, measure, shared, table
from primus_preflight.cli import REPORT, TESTS
from primus_preflight.verdict import Limits, groups, leaders, problems

if TYPE_CHECKING:
    from primus_core.run.context import Run

_QUICK = ("gemm", "intra-allreduce", "inter-allreduce")
_SIZES = {"cuda": [2**power for power in range(1, 11)], "cpu": [1, 8]}
_QUICK_SIZES = {"cuda": [64, 1024], "cpu": [1]}
_P2P_SIZES = {"cuda": [10, 20, 40, 80, 160], "cpu": [1, 8]}
_TOLERANCE = {"cuda": 0.2, "cpu": 0.6}


def run_checks(run: Run) -> None:
    """Look at everything and measure what is asked for."""
    run.apply_patches("build")
    device = _device(run.place.local_rank)
    timeout = timedelta(seconds=run.config["dist_timeout_sec"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    try:
        _Checks(run, device, timeout).run_all()
    finally:
        dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class _Checks:
    def __init__(self, run: Run, device: torch.device, timeout: timedelta) -> None:
        self.run, self.config, self.device = run, run.config, device
        place = run.place
        self.node, self.nodes = place.rank // place.local_world_size, place.world_size // place.local_world_size
        self.leader = place.local_rank == 0
        self.control = dist.new_group(backend="gloo", timeout=timeout)
        backend = "nccl" if device.type == "cuda" else "gloo"
        local = place.local_world_size
        within = [
            dist.new_group(list(range(node * local, (node + 1) * local)), timeout=timeout, backend=backend)
            for node in range(self.nodes)
        ]
        self.within = within[self.node]
        self.across = dist.new_group(timeout=timeout, backend=backend)
        self.repetitions = 3 if self.config["quick"] else 10

    def run_all(self) -> None:
        place = self.run.place
        self.run.enter("look")
        processor = self.run.devices[0].name if self.run.devices else "no device"
        seen = facts.of_rank(place.rank, place.local_rank, place.local_world_size, self.run.folder, processor)
        self.run.enter("shared files")
        seen["shared"], seen["write_rate"] = shared.consistent(
            self.run.folder, self._token(), self.node, self.nodes, self.leader, partial(dist.barrier, self.control)
        )
        self.run.enter("clocks")
        first = [node * place.local_world_size for node in range(1, self.nodes)]
        offsets = measure.clock_offset(place.rank, first, self.control)
        self.run.enter("devices")
        seen["rates"] = dict(self._rates())
        seen["collectives"] = list(self._collectives())
        self.run.enter("report")
        every: list[Any] = [None] * place.world_size
        dist.all_gather_object(every, seen, group=self.control)
        if place.rank == 0:
            self._tell_apart(every)
            hosts = {each["rank"]: each["host"] for each in every}
            self._report(every, {hosts[rank]: offset for rank, offset in offsets.items()})
        dist.barrier(self.control)

    @property
    def tests(self) -> tuple[str, ...]:
        wanted = self.config["tests"]
        if self.config["quick"] and wanted == ["all"]:
            return _QUICK
        return TESTS if "all" in wanted else tuple(wanted)

    def _token(self) -> str:
        """A name that this job alone has, the same on all ranks."""
        token = [f".preflight-{uuid.uuid4().hex}"]
        dist.broadcast_object_list(token, 0, group=self.control)
        return token[0]

    def _rates(self) -> Iterator[tuple[str, float]]:
        if "gemm" in self.tests:
            yield "gemm", measure.gemm(self.device, self.repetitions)
        if "copy" in self.tests:
            yield "copy", measure.copy(self.device, self.repetitions)
            if self.device.type == "cuda":
                yield "from host", measure.from_host(self.device, self.repetitions)

    def _collectives(self) -> Iterator[Mapping[str, Any]]:
        for test in self.tests:
            across = test.startswith("inter")
            group = self.across if across else self.within
            if test in ("gemm", "copy") or group.size() == 1 or (across and self.nodes == 1):
                continue
            self.run.enter(test)
            call = self._call(test)
            for size in (measure.LATENCY_BYTES, *(mib * 2**20 for mib in self._sizes(test))):
                seconds = call(group, self.device, size, self.repetitions)
                if not (test == "inter-p2p" and self._pair == self.run.place.rank):
                    factor = measure.bus_factor(test, group.size())
                    yield {"test": test, "bytes": size, "seconds": seconds, "factor": factor}

    def _call(self, test: str) -> Callable[..., float]:
        if test.endswith("allreduce"):
            return measure.all_reduce
        if test.endswith("alltoall"):
            return measure.all_to_all
        local, ranks, rank = self.run.place.local_world_size, self.run.place.world_size, self.run.place.rank
        if test == "inter-ring-p2p":  # to the same device of the next node
            return partial(measure.exchange, (rank + local) % ranks, (rank - local) % ranks)
        return partial(measure.exchange, self._pair, self._pair)

    def _sizes(self, test: str) -> list[int]:
        kind = self.device.type
        if test.endswith("p2p"):
            chosen, usual = self.config["p2p_sizes_mb"], _P2P_SIZES[kind]
        else:
            chosen = self.config[f"{test.partition('-')[0]}_sizes_mb"]
            usual = (_QUICK_SIZES if self.config["quick"] else _SIZES)[kind]
        return list(chosen or usual)

    @property
    def _pair(self) -> int:
        """The same device of the other node of a pair; of the last of an odd number of nodes, this rank itself."""
        other, rank = self.node ^ 1, self.run.place.rank
        return rank if other >= self.nodes else rank + (other - self.node) * self.run.place.local_world_size

    def _tell_apart(self, every: list[Any]) -> None:
        """Nodes that have one host name, as two on one machine have, get their numbers behind it."""
        names = [each["host"] for each in leaders(every)]
        for each in every:
            if names.count(each["host"]) > 1:
                each["host"] += f"/{each['rank'] // self.run.place.local_world_size}"

    def _report(self, every: list[Any], clocks: Mapping[str, float]) -> None:
        config = self.config
        tolerance = config["tolerance"]
        limits = Limits(
            tolerance=_TOLERANCE[self.device.type] if tolerance is None else tolerance,
            free_disk=config["free_disk_gb"] * 1e9,
            busy_memory=config["busy_memory_gib"] * 2**30,
            clock_skew=config["clock_skew_sec"],
            expected_gpus=config["expected_gpus"],
        )
        wrong = problems(every, clocks, limits)
        text = list(table.lines(every, clocks, wrong))
        report = {"problems": wrong, "clocks": clocks, "collectives": groups(every), "ranks": every}
        files = {self.run.attempt / REPORT: json.dumps(report, indent=1) + "\n"}
        if config["dump_path"]:
            name = config["report_file_name"] or f"preflight-{self.nodes}N-{time.strftime('%Y%m%d-%H%M%S')}"
            folder = Path(config["dump_path"])
            folder.mkdir(parents=True, exist_ok=True)
            files |= {
                folder / f"{name}.json": json.dumps(report, indent=1) + "\n",
                folder / f"{name}.txt": "\n".join(text).lstrip("\n") + "\n",
            }
        for file, content in files.items():
            file.write_text(content, encoding="utf-8")
        for line in text:
            self.run.note(line)
