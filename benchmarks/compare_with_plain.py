"""The same training through primus and through plain Megatron, in turns: equal losses, and the ratio of step times.

    python benchmarks/compare_with_plain.py benchmarks/experiments/gpt_tiny.yaml --nproc 1 --pairs 3

The plain side gets, as flags, the values that primus resolved. Losses are compared as text, as Megatron prints them.
Writes one JSON object with versions, both sides' step times (ms, median over steps of each run) and their ratio.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LINE = re.compile(r"iteration +(\d+)/.*elapsed time per iteration \(ms\): ([\d.]+).*lm loss: (\S+) .*grad norm: (\S+)")
WITHOUT_TE = (
    "--transformer-impl=local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion"
    " --no-rope-fusion --distributed-timeout-minutes=10"
).split()
WARM_UP = 3


def flags(config: dict) -> list[str]:
    """Megatron's command line for the values that differ from its own defaults."""
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    words: list[str] = []
    for action in parser._actions:
        value = config.get(action.dest)
        if value is None or value == action.default or not action.option_strings:
            continue
        flag = action.option_strings[-1]
        if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
            words += [flag] if value == action.const else []
        elif isinstance(action, argparse.BooleanOptionalAction):
            words += [flag if value == flag.startswith("--no-") else action.option_strings[0]]
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def steps(log: str) -> list[tuple[int, float, str, str]]:
    """Iteration, milliseconds, loss and gradient norm of every line that Megatron logged."""
    return [(int(i), float(ms), loss, norm) for i, ms, loss, norm in LINE.findall(log)]


def run(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{argv[:6]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="key=value for both sides")
    options = parser.parse_args()

    import torch

    env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
    gpu = torch.cuda.is_available()
    if not gpu:
        env["TORCH_COMPILE_DISABLE"] = "1"

    times: dict[str, list[float]] = {"plain": [], "primus": []}
    losses: dict[str, list] = {}
    for pair in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            run(
                [sys.executable, "-m", "primus_core", "train", "pretrain", "--config", str(options.experiment)]
                + ["--nproc-per-node", str(options.nproc), f"workspace={folder}", *options.overrides],
                env,
            )
            (attempt,) = Path(folder).glob("*/*/*/attempts/*")
            config = json.loads((attempt / "worker.json").read_text())["config"]
            log = (attempt / "logs" / f"rank-{options.nproc - 1}.log").read_text()
        sides = {"primus": log}
        backend = "nccl" if gpu else "gloo"
        sides["plain"] = run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.nproc)]
            + [str(HERE / "megatron_plain.py"), *flags(config), *WITHOUT_TE, f"--distributed-backend={backend}"],
            env,
        )
        for side, text in sides.items():
            found = steps(text)
            times[side].append(statistics.median(ms for _, ms, _, _ in found[WARM_UP:]))
            trace = [(step, loss, norm) for step, _, loss, norm in found]
            if losses.setdefault(side, trace) != trace:
                print(f"pair {pair}: the losses of {side} differ between runs")
        print(f"pair {pair}: plain {times['plain'][-1]:.1f} ms, primus {times['primus'][-1]:.1f} ms a step", flush=True)

    equal = losses["plain"] == losses["primus"]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "experiment": options.experiment.name,
        "nproc": options.nproc,
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "megatron-core", "primus-core")},
        "step_ms": times,
        "ratio": statistics.median(ours / theirs for ours, theirs in zip(times["primus"], times["plain"], strict=True)),
        "losses_equal": equal,
        "steps": len(losses["plain"]),
        "last": {side: trace[-1] for side, trace in losses.items()},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
