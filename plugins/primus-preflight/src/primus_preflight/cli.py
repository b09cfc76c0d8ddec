"""``primus preflight``: its options, laid over the experiment that this package brings along."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from primus_core.cli import train
from primus_core.cli.context import State
from primus_core.errors import ExitCode, UserError
from primus_core.launch import direct, nested

if TYPE_CHECKING:
    from primus_core.launch.prepare import Preparation

EXPERIMENT = Path(__file__).with_name("preflight.yaml")
REPORT = "preflight.json"
TESTS = (
    "gemm",
    "copy",
    "intra-allreduce",
    "intra-alltoall",
    "inter-allreduce",
    "inter-alltoall",
    "inter-p2p",
    "inter-ring-p2p",
)

REFUSED = {
    "--perf-test": "measurements are made unless --host, --gpu or --network is given",
    "--plot": "the report is text and JSON",
    "--disable-pdf": "there is no PDF",
    "--intra-group-sizes": "all ranks of a node take part",
    "--inter-group-sizes": "all ranks take part; --tests inter-p2p finds the bad pair of nodes",
    "--no-split-nodes-subgroup": "all ranks take part",
    "--comm-cleanup-delay-sec": "groups are made once",
}
"""Options of older versions, and why they are gone."""


def _refuse(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        name = option.opts[0]
        raise UserError(f"{name} is no longer there: {REFUSED[name]}")


def _sizes(ctx: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.BadParameter(f"{value!r}: write whole megabytes with commas between them, such as 1,64")
    return [int(word) for word in words]


def _tests(ctx: click.Context, option: click.Parameter, value: str | None) -> list[str] | None:
    from primus_core.plugins.manager import did_you_mean

    words = [word.strip() for word in value.split(",")] if value else []
    for word in words:
        if word not in (*TESTS, "all"):
            hint = did_you_mean(word, TESTS)
            raise click.BadParameter(f"no test {word!r}{hint}; there are {', '.join(TESTS)}, all")
    return words or None


def _options() -> list[click.Parameter]:
    def mb(name: str, help_: str) -> click.Option:
        return click.Option([name], callback=_sizes, metavar="MB,MB", help=help_)

    return [
        click.Option(["--host", "--check-host", "host"], is_flag=True, help="Look at hosts, and measure nothing."),
        click.Option(["--gpu", "--check-gpu", "gpu"], is_flag=True, help="Look at GPUs, and measure nothing."),
        click.Option(["--network", "--check-network", "network"], is_flag=True, help="Look only, measure nothing."),
        click.Option(["--tests"], callback=_tests, metavar="TEST,TEST", help=f"Of {', '.join(TESTS)}, all (default)."),
        click.Option(["--quick"], is_flag=True, help="GEMM and all-reduce, few sizes and repetitions."),
        mb("--comm-sizes-mb", "Sizes of collectives."),
        mb("--intra-comm-sizes-mb", "Within a node; default: --comm-sizes-mb."),
        mb("--inter-comm-sizes-mb", "Across nodes; default: --comm-sizes-mb."),
        mb("--ring-p2p-sizes-mb", "From node to node."),
        click.Option(
            ["--tolerance"],
            type=click.FloatRange(0, 1),
            help="How far below the median is too slow: 0.2 on GPUs.",
        ),
        click.Option(["--expected-gpus"], type=click.IntRange(min=0), help="On each node."),
        click.Option(["--free-disk-gb"], type=float, help="That the workspace must have: 10."),
        click.Option(["--busy-memory-gib"], type=float, help="Of a GPU that others may use: 2."),
        click.Option(["--clock-skew-sec"], type=float, help="Between two nodes: 1."),
        click.Option(["--dist-timeout-sec"], type=click.IntRange(min=1), help="For one collective: 120."),
        click.Option(["--dump-path"], type=click.Path(file_okay=False), help="One more folder for the report."),
        click.Option(["--report-file-name"], metavar="NAME", help="Its name there: preflight-<nodes>N-<time>."),
        click.Option(["--workspace"], type=click.Path(file_okay=False), help="Shared by all nodes: ./output."),
        click.Option(["--dry-run"], is_flag=True, help="Print what would be done, and do nothing."),
        *(
            click.Option([name], is_flag=takes_none, hidden=True, callback=_refuse, expose_value=False)
            for name in REFUSED
            for takes_none in [not name.endswith(("-sizes", "-sec"))]
        ),
    ]


def overrides(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The options as parameters: ``tests=["gemm"]``."""
    values = dict(given)
    looks = [name for name in ("host", "gpu", "network") if values.pop(name)]
    if looks and (values["tests"] or values["quick"]):
        raise click.UsageError(f"--{looks[0]} measures nothing: leave it out, or --tests and --quick")
    sizes = values.pop("comm_sizes_mb")
    values |= {
        "tests": [] if looks else values["tests"],
        "intra_sizes_mb": values.pop("intra_comm_sizes_mb") or sizes,
        "inter_sizes_mb": values.pop("inter_comm_sizes_mb") or sizes,
        "p2p_sizes_mb": values.pop("ring_p2p_sizes_mb"),
        "quick": values["quick"] or None,
    }
    return tuple(f"{name}={json.dumps(value)}" for name, value in values.items() if value is not None)


@click.command(params=[*_options(), *direct.OPTIONS], options_metavar="[OPTIONS]")
@click.pass_obj
def preflight(state: State, /, dry_run: bool, **given: Any) -> int:
    """Before a large job: are all nodes alike, do they see the same files, is one of them slow?

    Looks at every node and device, measures matrix products, copies and collectives, and names what is odd. It runs
    under every launcher, as train does. Exit code 3 if something is wrong.
    """
    state.dry_run |= dry_run
    launch = {str(option.name): given.pop(str(option.name)) for option in direct.OPTIONS}
    order = train.Order(stage="pretrain", file=EXPERIMENT, overrides=overrides(given))
    found: list[Preparation] = []
    code = train.carry_out(state, order, train.launch_options(state, launch, order), found.append)
    if code or state.dry_run or nested.joined(state.environ):
        return code
    return _verdict(found[0].experiment.folder)


def _verdict(experiment: Path) -> int:
    """What the report of the attempt that this process made says; done where the work was only handed over."""
    from primus_core.run.attempts import named

    me = {"name": socket.gethostname(), "pid": os.getpid()}
    mine = [attempt for attempt in named(experiment) if me.items() <= attempt.about.get("host", {}).items()]
    file = mine[-1].folder / REPORT
    wrong = file.is_file() and json.loads(file.read_text(encoding="utf-8"))["problems"]
    return ExitCode.ENVIRONMENT if wrong else ExitCode.DONE
