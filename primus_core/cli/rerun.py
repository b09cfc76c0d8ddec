"""``primus rerun``: the same run again, and what is not the same today."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from primus_core.cli import train
from primus_core.cli.context import Invocation, State
from primus_core.cli.text import cell, columns
from primus_core.errors import UserError
from primus_core.launch import direct

if TYPE_CHECKING:
    from primus_core.launch.prepare import Preparation
    from primus_core.run.attempts import Attempt


@click.command(
    params=[*direct.OPTIONS],
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[OPTIONS]",
)
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--dry-run", is_flag=True, help="Say what differs, print what would be done, and do nothing.")
@click.pass_context
def rerun(ctx: click.Context, /, run: Path, dry_run: bool, **launch: Any) -> int:
    """Repeat RUN, the folder of one attempt or of an experiment (its latest attempt), from what it wrote down.

    First it says what differs today. It gets a folder and checkpoints of its own, NAME-rerun, and at the end the
    losses are compared. Words behind RUN are parameters of the engine, as for train.
    """
    from primus_core.run.attempts import latest

    attempt = latest(run.absolute())
    return _repeat(ctx.ensure_object(State), attempt, dry_run, launch, tuple(ctx.args))


def _repeat(state: State, attempt: Attempt, dry_run: bool, launch: Mapping[str, Any], words: tuple[str, ...]) -> int:
    about, config = attempt.about, attempt.folder / "config.yaml"
    if "launcher" not in about or not config.is_file():
        raise UserError(f"{attempt.folder} cannot be repeated: it has no config.yaml, or no launcher in run.json")
    cwd = Path(about["cwd"])
    if not cwd.is_dir():
        _say(f"{cwd}, where it was started, is not here: relative paths count from {Path.cwd()}")
        cwd = Path.cwd()
    found: list[Preparation] = []

    def before(preparation: Preparation) -> None:
        found.append(preparation)
        _tell(attempt, preparation)

    with chdir(cwd):
        overrides = (*_name(attempt, words), *words)
        again = State(
            debug=state.debug,
            dry_run=state.dry_run or dry_run,
            primusfile=state.primusfile or (Path(about["primusfile"]) if about["primusfile"] else None),
            environ=state.environ,
            chain=(_invocation(attempt, config, overrides),),
        )
        order = train.Order(stage=about["stage"], file=config, overrides=overrides)
        code = train.carry_out(again, order, train.launch_options(again, launch, order), before)
        if not again.dry_run:
            _compare(attempt, found[0].experiment.folder.absolute())
    return code


def _name(attempt: Attempt, words: tuple[str, ...]) -> Iterator[str]:
    """A name that is free, so that the repetition finds no checkpoints and starts where the first attempt did."""
    if any(word.lstrip("-").partition("=")[0] == "exp_name" for word in words):
        return
    name, folder = f"{attempt.about['name']}-rerun", (attempt.experiment or attempt.folder).parent
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    yield f"exp_name={next(free for free in itertools.chain([name], numbered) if not (folder / free).exists())}"


def _invocation(attempt: Attempt, config: Path, overrides: tuple[str, ...]) -> Invocation:
    """The launcher and its options as they were; of launchers inside it, too."""
    launcher, argv = attempt.about["launcher"], list(attempt.about["argv"])
    inner = tuple(argv[: len(argv) - argv[::-1].index("train") - 1]) if "train" in argv else ()
    return Invocation(
        launcher=launcher["name"],
        options={name: tuple(v) if isinstance(v, list) else v for name, v in launcher["options"].items()},
        argv=(*inner, "train", attempt.about["stage"], "--config", str(config), *overrides),
    )


def _tell(attempt: Attempt, preparation: Preparation) -> None:
    """What is not as it was."""
    from primus_core.config import render
    from primus_core.run import folder
    from primus_core.run.compare import Facts, differences

    today = Facts(
        about=train.describe(preparation),
        origins=render.origins(preparation.experiment),
        diff=folder.uncommitted() or "",
    )
    found = differences([Facts.of(attempt), today])
    rows = [(title, row) for title, rows in found.items() for row in rows if row.name != "exp_name"]
    if not rows:
        _say(f"{attempt.name} again: code, versions, environment, data and hardware are the same")
        return
    _say(f"{attempt.name} again; what differs today:")
    for title, part in itertools.groupby(rows, key=lambda row: row[0]):
        head = (title, "then", "today")
        _say(columns([head, *((row.name, *map(cell, row.values)) for _, row in part)], indent="  "))
    start = next((event["step"] for event in attempt.events if event["event"] == "expect"), 0)
    if start:
        _say(f"{attempt.name} went on from step {start}; this run starts as the first attempt did")


def _compare(attempt: Attempt, experiment: Path) -> None:
    """Whether the losses are the same to the last bit."""
    from primus_core.run.attempts import named
    from primus_core.run.history import History

    before = named(attempt.experiment) if attempt.experiment else [attempt]
    then = dict(History([each for each in before if each.folder.name <= attempt.folder.name]).curve("loss"))
    now = dict(History(named(experiment)).curve("loss"))
    steps = sorted(then.keys() & now.keys())
    if not steps:
        _say("no step has a loss in both runs")
    elif other := [step for step in steps if then[step] != now[step]]:
        step = other[0]
        _say(f"losses differ from step {step} on: {then[step]!r} then, {now[step]!r} now; {len(other)} of {len(steps)}")
    else:
        _say(f"losses of {len(steps)} steps are equal to the last bit")


def _say(line: str) -> None:
    click.echo(line, err=True)
