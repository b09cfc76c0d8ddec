"""``primus data``: prepare text for training, and look at what was prepared."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from primus_core.cli.context import State, pass_state
from primus_core.cli.group import OpenGroup
from primus_core.data import prepare as preparing
from primus_core.data.datasets import HUB, NamedText, on_hub, parse
from primus_core.data.head import beside
from primus_core.data.indexed import IndexedReader
from primus_core.data.needs import need
from primus_core.data.sources import Source, find_files
from primus_core.data.tokenizer import find_tokenizer
from primus_core.errors import UserError
from primus_core.plugins.info import Contribution
from primus_core.plugins.manager import did_you_mean
from primus_core.plugins.records import Dataset


@click.group(cls=OpenGroup)
def data() -> None:
    """Prepare text for training."""


@data.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Writes PREFIX.bin, PREFIX.idx, PREFIX.json.",
)
@click.option(
    "--tokenizer",
    metavar="TOKENIZER",
    help="A folder with tokenizer.json, such a file, or a name on the Hugging Face hub.",
)
@click.option(
    "--train-tokenizer",
    type=click.IntRange(1),
    metavar="VOCABULARY",
    help="Train a byte-level BPE of this size on the input, into PREFIX-tokenizer/.",
)
@click.option(
    "--key",
    default="text",
    show_default=True,
    help="The field of JSON lines, or the column of Parquet, that holds the text.",
)
@click.option(
    "--split-documents",
    type=click.Choice(["file", "paragraph", "line"]),
    default="file",
    show_default=True,
    help="What is a document in a text file; paragraphs are parted by blank lines.",
)
@click.option(
    "--append-eod/--no-append-eod",
    default=True,
    show_default=True,
    help="End each document with the end-of-document token.",
)
@click.option("--eod-token", metavar="TOKEN", help="That token, where the tokenizer's own files do not say it.")
@click.option(
    "--special-tokens/--no-special-tokens",
    default=True,
    show_default=True,
    help="Let the tokenizer add the tokens it adds to each text, such as a first <s>.",
)
@click.option(
    "--valid",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="FRACTION",
    help="Put this part of the documents into PREFIX-valid, the others into PREFIX-train.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63), default=0, show_default=True, help="Chooses the documents of --valid."
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=lambda: len(os.sched_getaffinity(0)),
    help="Processes; the output does not depend on it.  [default: processors]",
)
@click.option("--force", is_flag=True, help="Replace output that exists.")
@pass_state
def prepare(
    state: State,
    /,
    inputs: tuple[str, ...],
    output: Path,
    tokenizer: str | None,
    train_tokenizer: int | None,
    key: str,
    eod_token: str | None,
    **options: Any,
) -> None:
    """Turn text into Megatron's token files.

    INPUT is a file (.txt, .jsonl, .parquet, also .gz and .zst), a folder, a glob pattern, the name of a registered
    dataset such as pydoc, or hf://OWNER/NAME on the Hugging Face hub. A command that was interrupted continues where
    it was when it is given again.
    """
    if (tokenizer is None) == (train_tokenizer is None):
        raise UserError("choose one of --tokenizer and --train-tokenizer")
    sources = list(_inputs(state, inputs, key))
    found = find_tokenizer(tokenizer, eod_token) if tokenizer is not None else None
    asked = preparing.Options(output=output, tokenizer=found, train_vocab_size=train_tokenizer, **options)
    started = time.perf_counter()
    with _progress() as progress:
        outcome = preparing.prepare(sources, asked, progress)
    for source in outcome.record["sources"]:
        click.echo(f"{source['name']}: {_count(source['documents'], 'document')}, {source['characters']:,} characters")
    if found is None:
        click.echo(f"{beside(output, '-tokenizer')}: {outcome.record['tokenizer']['vocab_size']:,} tokens, trained")
    for prefix in outcome.prefixes.values():
        click.echo(f"{prefix}: {_files(outcome.record['files'][prefix.name])}")
    click.echo(f"done in {time.perf_counter() - started:.1f} s")


@data.command()
@click.argument("prefix", type=click.Path(path_type=Path))
def info(prefix: Path) -> None:
    """Say what PREFIX.bin and PREFIX.idx hold."""
    need("numpy")
    reader = IndexedReader(_bare(prefix))
    lengths = reader.lengths
    click.echo(f"{_bare(prefix)}: {_count(len(reader), 'document')}, {reader.tokens_total:,} tokens, {reader.dtype}")
    if len(lengths):
        click.echo(f"length: {lengths.min():,} to {lengths.max():,}, mean {lengths.mean():,.1f}")
    if record := _record(_bare(prefix)):
        tokenizer = record["tokenizer"]
        end = tokenizer["eod_token"] or "none"
        click.echo(f"tokenizer: {tokenizer['path']}, {tokenizer['vocab_size']:,} tokens, end of document {end}")
        for source in record["sources"]:
            documents = _count(source["documents"], "document")
            click.echo(f"source: {source['name']}, {documents}, fingerprint {source['fingerprint']}")


@data.command()
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--doc", type=int, default=0, show_default=True, help="Which document; negative ones count from the end.")
@click.option("--tokens", is_flag=True, help="Show the numbers of the tokens, not the text.")
@click.option("--tokenizer", help="Where the tokenizer is, if PREFIX.json does not say it.")
def show(prefix: Path, doc: int, tokens: bool, tokenizer: str | None) -> None:
    """Print a document of PREFIX, decoded."""
    need("numpy")
    reader = IndexedReader(_bare(prefix))
    if not -len(reader) <= doc < len(reader):
        raise UserError(f"--doc {doc}: {_bare(prefix)} has {_count(len(reader), 'document')}")
    ids = reader[doc].tolist()
    if tokens:
        click.echo(" ".join(map(str, ids)))
        return
    record = _record(_bare(prefix))
    if tokenizer is None and record is None:
        raise UserError(f"{_bare(prefix)} has no .json that names its tokenizer; use --tokenizer")
    if tokenizer is None:
        assert record is not None
        named = record["tokenizer"]
        tokenizer = str(prefix.parent / named["path"]) if named["trained"] else str(named["path"])
    click.echo(find_tokenizer(tokenizer).load().decode(ids, skip_special_tokens=False))


@data.command(name="datasets")
@pass_state
def datasets(state: State) -> None:
    """List the datasets that have a name here."""
    for name, contribution in sorted(state.plugins.named("primus_datasets").items()):
        click.echo(f"{name}: {contribution.record.summary} ({contribution.plugin.name})")


# --- inputs -----------------------------------------------------------------------------------------------------


def _inputs(state: State, inputs: tuple[str, ...], key: str) -> Iterator[Source | NamedText]:
    """Sources in the order of the command line. A file goes before a dataset of the same name."""
    problems: list[str] = []
    found: list[Source | NamedText] = []
    for text in inputs:
        try:
            if text.startswith(HUB):
                found.append(on_hub(text, key))
                continue
            name, options = parse(text)
            if not Path(text).exists() and name in (datasets := state.plugins.named("primus_datasets")):
                found.append(NamedText(text, _reader(text, datasets[name], options)))
                continue
            files, empty = find_files([text], key)
            for path in empty:
                click.echo(f"{path}: empty file, left out", err=True)
            found.extend(file for file in files if file not in found)
        except UserError as error:
            hint = did_you_mean(text, state.plugins.named("primus_datasets")) if text.isidentifier() else ""
            problems.append(f"{error}{hint}")
    if problems:
        raise UserError("\n".join(problems))
    yield from found


def _reader(text: str, dataset: Contribution[Dataset], options: dict[str, str]) -> Callable[[], Iterator[str]]:
    read = dataset.load(dataset.record.read)
    try:
        inspect.signature(read).bind(**options)
    except TypeError as error:
        raise UserError(f"{text}: dataset {dataset.record.name!r} does not take these options: {error}") from error
    return partial(read, **options)


def _bare(prefix: Path) -> Path:
    """PREFIX, also where one of its two files was named."""
    return prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix


def _record(prefix: Path) -> dict[str, Any] | None:
    """The record that was written with these files, if it is still there."""
    for suffix in ("", "-train", "-valid"):
        file = prefix.with_name(prefix.name.removesuffix(suffix) + ".json")
        if file.is_file():
            record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if prefix.name in record.get("files", {}):
                return record
    return None


# --- words ------------------------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _files(numbers: dict[str, Any]) -> str:
    return f"{_count(numbers['documents'], 'document')}, {numbers['tokens']:,} tokens, {numbers['dtype']}"


@contextmanager
def _progress() -> Iterator[preparing.Progress]:
    """A bar on a terminal; elsewhere a line now and then."""
    started = time.perf_counter()
    if not sys.stderr.isatty():
        last = started

        def line(done: int, total: int, tokens: int) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last >= 10:
                last = now
                rate = tokens / (now - started)
                click.echo(f"{done / total:4.0%}  {tokens:,} tokens  {rate:,.0f} tokens/s", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %  {task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("")

        def bar(done: int, total: int, tokens: int) -> None:
            rate = tokens / (time.perf_counter() - started)
            bars.update(task, completed=done, total=total, description=f"{tokens:,} tokens  {rate:,.0f} tokens/s")

        yield bar
