"""A conversion from the CLI's side: a process for the engine, a folder that appears when it is complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from primus_core import elsewhere
from primus_core.convert.order import Order, Report
from primus_core.errors import UserError

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "generation_config.json"),
)


def carry_out(order: Order, environ: Mapping[str, str], tokenizer: Path | None = None) -> Report:
    """Convert, in a process of its own. ``order.output`` is written only if the report is complete."""
    with staging(order.output) as folder:
        report = _convert(replace(order, output=folder), environ)
        if report.complete:
            if tokenizer is not None:
                check_vocabulary(tokenizer, folder)
                copy_tokenizer(tokenizer, folder)
            folder.rename(order.output)
    return report


def check_output(output: Path) -> None:
    """Raise ``UserError`` unless a folder can come to be there."""
    if output.is_dir() and not any(output.iterdir()):
        return
    if output.exists():
        raise UserError(f"--output {output}: exists already")


@contextlib.contextmanager
def staging(output: Path) -> Iterator[Path]:
    """An empty folder beside ``output``, removed at the end if it is still there."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}") from error
    try:
        folder.chmod(0o777 & ~_umask())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tokenizer_files(folder: Path) -> list[Path]:
    """What makes up the tokenizer in a folder, or of which a file was named. Raises ``UserError`` for none."""
    folder = folder.parent if folder.is_file() else folder
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not any(file.name.startswith(("tokenizer.", "vocab.")) for file in files):
        raise UserError(f"--tokenizer {folder}: no tokenizer.json, tokenizer.model or vocab.* there")
    return files


def check_vocabulary(tokenizer: Path, model: Path) -> None:
    """Raise ``UserError`` for a tokenizer with tokens that the model has no row for: it belongs to another one."""
    file, config = tokenizer_files(tokenizer)[0], model / "config.json"
    if file.name != "tokenizer.json" or not config.is_file():
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        words = content["model"]["vocab"]
        numbers = list(words.values()) if isinstance(words, dict) else list(range(len(words)))
        count = max([*numbers, *(added["id"] for added in content.get("added_tokens", ()))]) + 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--tokenizer {file}: is damaged: {error}") from error
    values = json.loads(config.read_text(encoding="utf-8"))
    rows = values.get("vocab_size") if isinstance(values, dict) else None
    if rows is not None and count > rows:
        raise UserError(
            f"--tokenizer {file}: has {count:,} tokens and the model {rows:,}: it was trained with another one"
        )


def copy_tokenizer(source: Path, folder: Path) -> None:
    for file in tokenizer_files(source):
        if not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _convert(order: Order, environ: Mapping[str, str]) -> Report:
    who = f"the converter of {order.backend}"
    return Report.read(elsewhere.call("primus_core.convert.worker:convert", order.text(), environ, who=who))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
