"""The same training through primus and through the bare engine, in turns: losses, and the ratio of step times.

    python benchmarks/compare_with_plain.py benchmarks/experiments/gpt_tiny.yaml --nproc 1 --pairs 3

The plain side gets the values that primus resolved. Losses and gradient norms are compared as the engine logs them.
Writes one JSON object with versions, both sides' step times (ms, median over the steps of each run) and their ratio:
the median over the pairs, and that of the fastest runs, which what else the machine does disturbs least.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
WARM_UP = 5
type Step = tuple[int, float, str, str]
"""Iteration, milliseconds, loss and gradient norm."""


class Megatron:
    LINE = re.compile(
        r"iteration +(\d+)/.*elapsed time per iteration \(ms\): ([\d.]+).*lm loss: (\S+) .*grad norm: (\S+)"
    )
    WITHOUT_TE = (
        "--transformer-impl=local --no-persist-layer-norm --no-gradient-accumulation-fusion"
        " --no-masked-softmax-fusion --no-rope-fusion"
    ).split()

    def words(self, config: dict, folder: Path, gpu: bool) -> list[str]:
        backend = "nccl" if gpu else "gloo"
        return ["megatron_plain.py", *self.flags(config), *self.WITHOUT_TE, f"--distributed-backend={backend}"]

    def flags(self, config: dict) -> Iterator[str]:
        """Megatron's command line for the values that differ from its own defaults."""
        from megatron.training.arguments import add_megatron_arguments

        for action in add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))._actions:
            value = config.get(action.dest)
            if value is None or value == action.default or not action.option_strings:
                continue
            flag = action.option_strings[-1]
            if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
                yield from [flag] if value == action.const else []
            elif isinstance(action, argparse.BooleanOptionalAction):
                yield action.option_strings[0] if value else flag
            else:
                yield flag
                yield from map(str, value if isinstance(value, list) else [value])

    def steps(self, log: str, config: dict, ranks: int) -> list[Step]:
        return [(int(step), float(ms), loss, norm) for step, ms, loss, norm in self.LINE.findall(log)]


class Torchtitan:
    LINE = re.compile(r"step: +(\d+) +loss: +(\S+) +grad_norm: +(\S+) .*tps: ([\d,]+)")

    def words(self, config: dict, folder: Path, gpu: bool) -> list[str]:
        job = folder / "job.json"
        job.write_text(json.dumps(config))
        return ["torchtitan_plain.py", str(job)]

    def steps(self, log: str, config: dict, ranks: int) -> list[Step]:
        training = config["training"]
        tokens = training["local_batch_size"] * training["seq_len"]
        return [
            (int(step), 1e3 * tokens / int(per_second.replace(",", "")), loss, norm)
            for step, loss, norm, per_second in self.LINE.findall(log)
        ]


ENGINES = {"megatron": (Megatron(), "megatron-core"), "torchtitan": (Torchtitan(), "torchtitan")}


def run(words: list[str], env: dict[str, str], cores: list[int] | None) -> str:
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    done = subprocess.run([*pinned, sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[:6]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


class Pair(NamedTuple):
    distribution: str
    traces: dict[str, list[Step]]


def split(cores: list[int], lanes: int) -> Iterator[list[int]]:
    width = len(cores) // lanes
    return (cores[lane * width : (lane + 1) * width] for lane in range(lanes))


def one_pair(options: argparse.Namespace, env: dict[str, str], gpu: bool, cores: list[int] | None) -> Pair:
    ranks = str(options.nproc)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = ["-m", "primus_core", "train", "pretrain", "--config", str(options.experiment)]
        run([*train, "--nproc-per-node", ranks, f"workspace={folder}", *options.overrides], env, cores)
        (attempt,) = folder.glob("*/*/*/attempts/*")
        job = json.loads((attempt / "worker.json").read_text())
        engine, distribution = ENGINES[job["backend"]]
        log = (attempt / "logs" / f"rank-{options.nproc - 1}.log").read_text()
        primus = engine.steps(log, job["config"], options.nproc)

        script, *words = engine.words(job["config"], folder, gpu)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, str(HERE / script)]
        log = run([*torchrun, *words], env | {"DUMP_FOLDER": str(folder / "plain"), "LOG_RANK": "0"}, cores)
        return Pair(distribution, {"plain": engine.steps(log, job["config"], options.nproc), "primus": primus})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=1, help="pairs side by side, each on cores of its own")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="key=value for both sides")
    options = parser.parse_args()

    import torch

    env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
    gpu = torch.cuda.is_available()
    if not gpu:
        env["TORCH_COMPILE_DISABLE"] = "1"

    lanes = list(split(sorted(os.sched_getaffinity(0)), options.lanes))
    free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def pair(number: int) -> Pair:
        lane = free.get()
        done = one_pair(options, env, gpu, lane if len(lanes) > 1 else None)
        free.put(lane)
        told = ", ".join(f"{side} {median(trace):.1f} ms a step" for side, trace in done.traces.items())
        print(f"pair {number}: {told}", flush=True)
        return done

    with ThreadPoolExecutor(len(lanes)) as pool:
        pairs = list(pool.map(pair, range(options.pairs)))
    distribution = pairs[0].distribution
    traces = {side: [each.traces[side] for each in pairs] for side in ("plain", "primus")}

    figures = {
        side: [[(step, loss, norm) for step, _, loss, norm in trace] for trace in runs] for side, runs in traces.items()
    }
    plain, primus = figures["plain"][0], figures["primus"][0]
    times = {side: [round(median(trace), 2) for trace in runs] for side, runs in traces.items()}
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "experiment": options.experiment.name,
        "overrides": options.overrides,
        "nproc": options.nproc,
        "lanes": options.lanes,
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", distribution, "primus-core")},
        "step_ms": times,
        "ratio": round(statistics.median(a / b for a, b in zip(times["primus"], times["plain"], strict=True)), 4),
        "ratio_of_fastest": round(min(times["primus"]) / min(times["plain"]), 4),
        "steps": len(plain),
        "repeatable": {side: all(run == runs[0] for run in runs) for side, runs in figures.items()},
        "equal": plain == primus,
        "first_difference": next(([a, b] for a, b in zip(plain, primus, strict=False) if a != b), None),
        "last": {"plain": plain[-1], "primus": primus[-1]},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    sys.exit(0 if result["equal"] else 1)


def median(trace: list[Step]) -> float:
    return statistics.median(ms for _, ms, _, _ in trace[WARM_UP:])


if __name__ == "__main__":
    main()
