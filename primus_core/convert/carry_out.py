"""A conversion from the CLI's side: a process for the engine, a folder that appears when it is complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from primus_core.convert.order import Order, Report
from primus_core.errors import ExitCode, PrimusError, UserError

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
_LINES = 20


class ConversionFailed(PrimusError):
    """What the converter's process said."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(code)


def carry_out(order: Order, environ: Mapping[str, str], tokenizer: Path | None = None) -> Report:
    """Convert, in a process of its own. ``order.output`` is written only if the report is complete."""
    with staging(order.output) as folder:
        report = _convert(replace(order, output=folder), environ)
        if report.complete:
            if tokenizer is not None:
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


def copy_tokenizer(source: Path, folder: Path) -> None:
    for file in tokenizer_files(source):
        if not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _convert(order: Order, environ: Mapping[str, str]) -> Report:
    with tempfile.TemporaryDirectory(prefix="primus-convert-") as name:
        exchange = Path(name)
        (exchange / "order.json").write_text(order.text(), encoding="utf-8")
        argv = [sys.executable, "-m", "primus_core.convert.worker", name]
        done = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, errors="replace", check=False)
        if (error := exchange / "error.json").exists():
            content = json.loads(error.read_text(encoding="utf-8"))
            raise ConversionFailed(content["message"], content["exit_code"])
        if (report := exchange / "report.json").exists():
            return Report.read(report.read_text(encoding="utf-8"))
    said = "\n".join(done.stderr.splitlines()[-_LINES:])
    raise PrimusError(f"the converter of {order.backend} ended with {_how(done.returncode)}\n{said}".rstrip())


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
