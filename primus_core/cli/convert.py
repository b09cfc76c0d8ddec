"""``primus convert``: checkpoints of engines to and from Hugging Face's format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from primus_core.cli.context import State, pass_state
from primus_core.convert.order import DTYPES, HF, Order, Report
from primus_core.errors import EnvironmentFault, ExitCode, UserError
from primus_core.plugins.info import Contribution
from primus_core.plugins.manager import PluginManager, did_you_mean
from primus_core.plugins.records import Backend, Converter

_SHOWN = 20
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Size(click.ParamType[int]):
    """A number of bytes: 500MB, 5GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", value.strip(), re.IGNORECASE)
        if match is None or not (size := int(float(match[1]) * _UNITS[match[2].upper()])):
            self.fail(f"{value!r} is no size; as in: 500MB, 5GB", param, ctx)
        return size


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, metavar="FORMAT", help="hf, or a backend's name for its own format.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A folder to be made.")
@click.option(
    "--config",
    "--exp",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="An experiment that the model must fit.",
)
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="DIR", help="Copy the tokenizer's files too.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Of the weights.  [default: as they are]")
@click.option("--shard-size", type=Size(), default="5GB", show_default=True, help="Largest safetensors file.")
@pass_state
def convert(
    state: State,
    /,
    source: Path,
    target: str,
    output: Path,
    file: Path | None,
    tokenizer: Path | None,
    dtype: str | None,
    shard_size: int,
) -> int:
    """Convert the checkpoint SOURCE to another format.

    SOURCE is a folder with config.json and *.safetensors, or one that an engine saved: a run's checkpoints, of which
    the last is taken, or a certain one of them. DIR is written completely or not at all.
    """
    from primus_core.convert.carry_out import carry_out, check_output, tokenizer_files

    check_output(output)
    if tokenizer is not None:
        tokenizer_files(tokenizer)
    backend, found = _find(state.plugins, source, target)
    _require(backend)
    experiment = _experiment(state, file, backend) if file is not None else {}
    order = Order(
        source=found.absolute(),
        format=target,
        output=output.absolute(),
        backend=backend.name,
        dtype=dtype,
        shard_size=shard_size,
        **experiment,
    )
    return _tell(carry_out(order, state.environ, tokenizer), output)


def _tell(report: Report, output: Path) -> int:
    for note in report.notes:
        click.echo(note, err=True)
    problems = report.problems()
    for kind, text in problems[:_SHOWN]:
        click.echo(f"{kind}: {text}", err=True)
    if len(problems) > _SHOWN:
        click.echo(f"... and {len(problems) - _SHOWN} more", err=True)
    if not report.complete:
        click.echo(f"primus: {report.summary}; nothing was written", err=True)
        return ExitCode.USER_INPUT
    click.echo(f"{output}: {report.tensors:,} tensors, {report.parameters:,} parameters")
    click.echo(report.summary)
    return ExitCode.DONE


# --- which backend ------------------------------------------------------------------------------------------------


def _find(plugins: PluginManager, source: Path, target: str) -> tuple[Backend, Path]:
    """Who converts, and the checkpoint. Raises ``UserError`` where source and target do not go together."""
    able = {
        name: (contribution, contribution.record.converter)
        for name, contribution in plugins.named("primus_backends").items()
        if contribution.record.converter is not None
    }
    formats = sorted({HF, *able, *(each for _, converter in able.values() for each in converter.formats)})
    if target not in formats:
        raise UserError(f"--to {target}: no such format{did_you_mean(target, formats)}; there are {', '.join(formats)}")
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    holders = _holders(source, able)
    if target in able:
        if target in holders:
            raise UserError(f"{source} is a checkpoint of {target} already")
        if holders:
            raise UserError(f"{source} is a checkpoint of {' and '.join(holders)}; convert it to {HF} first")
        return able[target][0].record, _hugging_face(source, able)
    for name, found in holders.items():
        contribution, converter = able[name]
        if target in converter.formats:
            return contribution.record, found
    if holders:
        raise UserError(f"{' and '.join(holders)} cannot write {target}")
    _hugging_face(source, able)
    raise UserError(f"{source} is in Hugging Face's format already; --to takes {', '.join(sorted(able))} here")


type Able = Mapping[str, tuple[Contribution[Backend], Converter]]


def _holders(source: Path, able: Able) -> dict[str, Path]:
    """The backends whose checkpoint this is, and where exactly it lies."""
    found = {name: contribution.load(converter.find)(source) for name, (contribution, converter) in able.items()}
    return {name: path for name, path in found.items() if path is not None}


def _hugging_face(source: Path, able: Iterable[str]) -> Path:
    folder = source.parent if source.is_file() else source
    if not (folder / "config.json").is_file():
        names = ", ".join(able) or "any backend that is installed"
        raise UserError(f"{source}: neither a checkpoint of {names}, nor a folder with config.json and *.safetensors")
    return folder


def _require(backend: Backend) -> None:
    from primus_core.plugins.readiness import readiness

    ready = readiness(backend, None)
    if ready.reasons:
        raise EnvironmentFault(f"{backend.name} cannot run here: {'; '.join(ready.reasons)}; {backend.install}")


def _experiment(state: State, file: Path, backend: Backend) -> dict[str, Any]:
    from primus_core.config.resolve import resolve

    experiment = resolve(file, None, (), state.plugins, None, environ=state.environ)
    if experiment.backend != backend.name:
        raise UserError(f"{file}: is for {experiment.backend}; this conversion needs one for {backend.name}")
    origins = {".".join(path): str(leaf.origin) for path, leaf in experiment.config.leaves()}
    return {"config": experiment.config.plain(), "origins": origins, "model": experiment.model}
