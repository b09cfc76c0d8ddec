"""Where documents come from: files of text, JSON lines and Parquet, cut into slices that are read independently."""

from __future__ import annotations

import glob
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from primus_core.data.needs import need
from primus_core.errors import Origin, Problem, UserError

type Kind = Literal["text", "json", "parquet"]
type Split = Literal["file", "paragraph", "line"]

KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
COMPRESSED = (".gz", ".zst")
SLICE_BYTES = 4 << 20
MAX_SLICES = 4096
MAX_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Source:
    """One file. ``name`` is what messages call it, ``key`` the field or column that holds its texts."""

    name: str
    path: Path
    kind: Kind
    key: str
    compression: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one source: bytes that begin and end at documents, or row groups of a Parquet file."""

    source: int
    start: int
    end: int
    weight: int


def find_files(inputs: Iterable[str], key: str) -> tuple[list[Source], list[str]]:
    """The files that paths, folders and glob patterns name, in that order, and the empty ones that were left out.

    A folder gives its files of known suffixes, sorted by path. Raises ``UserError`` naming all that is wrong.
    """
    sources: dict[Path, Source] = {}
    empty: list[str] = []
    problems: list[str] = []
    for text in inputs:
        path = Path(text).expanduser()
        named = path.is_file()
        if named:
            found = [path]
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if _is_text(file, path))
        else:
            found = sorted(_matching(path))
        if not found:
            problems.append(f"{text}: {_nothing(path)}")
        for file in found:
            if file.stat().st_size == 0:
                (problems if named else empty).append(f"{file}: empty file" if named else str(file))
            elif file not in sources:
                sources[file] = describe(file, key)
    if problems:
        raise UserError("\n".join(problems))
    return list(sources.values()), empty


def describe(path: Path, key: str, name: str | None = None) -> Source:
    """A file as a source; an unknown suffix means text."""
    compression = path.suffix if path.suffix in COMPRESSED else ""
    suffix = Path(path.stem).suffix if compression else path.suffix
    kind, stat = KINDS.get(suffix.lower(), "text"), path.stat()
    return Source(name or str(path), path, kind, key, compression, stat.st_size, stat.st_mtime_ns)


def cut(sources: list[Source], split: Split) -> list[list[Slice]]:
    """Parts of similar size, each a list of slices; the same for the same files, whatever the machine."""
    goal = max(SLICE_BYTES, sum(source.size for source in sources) // MAX_SLICES)
    parts: list[list[Slice]] = []
    weight = goal
    for piece in (piece for number, source in enumerate(sources) for piece in _slices(number, source, split, goal)):
        if weight + piece.weight > goal:
            parts.append([])
            weight = 0
        parts[-1].append(piece)
        weight += piece.weight
    return parts


def read(source: Source, piece: Slice, split: Split) -> Iterator[str]:
    """The documents of a slice. Raises ``UserError`` with the places of the first bad records, after the good ones."""
    if source.kind == "parquet":
        yield from _parquet(source, piece)
    elif source.kind == "json":
        yield from _json_lines(source, piece)
    else:
        yield from _text(source, piece, split)


# --- cutting ----------------------------------------------------------------------------------------------------


def _slices(number: int, source: Source, split: Split, goal: int) -> Iterator[Slice]:
    if source.kind == "parquet":
        with _open_parquet(source) as file:
            for group in range(file.num_row_groups):
                yield Slice(number, group, group + 1, file.metadata.row_group(group).total_byte_size)
    elif source.compression or (source.kind == "text" and split == "file"):
        yield Slice(number, 0, source.size, source.size)
    else:
        paragraphs = source.kind == "text" and split == "paragraph"
        with source.path.open("rb") as file:
            start = 0
            while start < source.size:
                file.seek(min(start + goal, source.size) - 1)
                file.readline()
                while paragraphs and file.readline().strip():
                    pass
                end = file.tell()
                yield Slice(number, start, end, end - start)
                start = end


# --- reading ----------------------------------------------------------------------------------------------------


class BadRecords:
    """The bad records of a slice, kept until there are enough to tell; lines count from the slice's start."""

    def __init__(self, source: Source, piece: Slice) -> None:
        self.source = source
        self.piece = piece
        self.found: list[tuple[int, int, str]] = []

    def add(self, line: int, column: int, message: str) -> None:
        """Note one; raises ``UserError`` with all that were found when there are many."""
        self.found.append((line, column, message))
        if len(self.found) >= MAX_PROBLEMS:
            self.check()

    def check(self) -> None:
        """Raise ``UserError`` if there is any."""
        if not self.found:
            return
        before = 0
        if self.source.kind != "parquet" and self.piece.start:
            with self.source.path.open("rb") as file:
                before = sum(file.read(1 << 20).count(b"\n") for _ in range(self.piece.start >> 20))
                before += file.read(self.piece.start & ((1 << 20) - 1)).count(b"\n")
        problems = (Problem(Origin(self.source.name, line + before, column), text) for line, column, text in self.found)
        raise UserError("\n".join(map(str, problems)))


def _open(source: Source) -> IO[bytes]:
    if source.compression == ".gz":
        return gzip.open(source.path)  # type: ignore[return-value]
    if source.compression == ".zst":
        need("pyarrow")
        from pyarrow import input_stream

        return io.BufferedReader(input_stream(str(source.path), compression="zstd"))
    return source.path.open("rb")


def _lines(source: Source, piece: Slice) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a slice, from 1."""
    try:
        with _open(source) as file:
            at = 0
            if not source.compression:
                at = file.seek(piece.start)
            for number, line in enumerate(file, 1):
                yield number, line.removeprefix(b"\xef\xbb\xbf") if at == 0 else line
                at += len(line)
                if at >= piece.end and not source.compression:
                    return
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        if not source.compression:
            raise
        raise UserError(f"{source.name}: cannot be decompressed: {error}") from error


def json_objects(source: Source, piece: Slice, problems: BadRecords) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines with the numbers of their lines in the slice; what is none goes to ``problems``."""
    for number, line in _lines(source, piece):
        if not line.strip():
            continue
        try:
            record = json.loads(line.rstrip().decode())
        except UnicodeDecodeError as error:
            problems.add(number, error.start + 1, "not UTF-8")
        except json.JSONDecodeError as error:
            problems.add(number, error.colno, f"not JSON: {error.msg}")
        else:
            if isinstance(record, dict):
                yield number, record
            else:
                problems.add(number, 1, "not a JSON object; expected one object per line")


def whole(source: Source) -> Slice:
    """All of a file of text or JSON lines."""
    return Slice(0, 0, source.size, source.size)


def _json_lines(source: Source, piece: Slice) -> Iterator[str]:
    problems, key = BadRecords(source, piece), source.key
    for number, record in json_objects(source, piece, problems):
        if key not in record:
            problems.add(number, 1, f"no key {key!r}{_which(record)}")
        elif not isinstance(text := record[key], str):
            problems.add(number, 1, f"{key!r} is not a text but {json.dumps(text)[:40]}")
        elif not is_unicode(text):
            problems.add(number, 1, f"{key!r} contains half of a surrogate pair, which is no text")
        else:
            yield text
    problems.check()


def _text(source: Source, piece: Slice, split: Split) -> Iterator[str]:
    problems = BadRecords(source, piece)
    lines: list[bytes] = []
    first = 1

    def document() -> Iterator[str]:
        try:
            text = b"".join(lines).decode()
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            column = error.start - (before.rfind(b"\n") + 1) + 1
            problems.add(first + before.count(b"\n"), column, "not UTF-8")
        else:
            text = text if split == "file" else text.rstrip("\r\n")
            if text:
                yield text
        lines.clear()

    for number, line in _lines(source, piece):
        if split == "line" or (split == "paragraph" and not line.strip()):
            lines.extend([line] if split == "line" else [])
            first = number if split == "line" else first
            yield from document()
        else:
            first = first if lines else number
            lines.append(line)
    yield from document()
    problems.check()


def _open_parquet(source: Source) -> Any:
    need("pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(source.path)
    except ArrowException as error:
        raise UserError(f"{source.name}: not a Parquet file: {error}") from error


def _parquet(source: Source, piece: Slice) -> Iterator[str]:
    problems, key = BadRecords(source, piece), source.key
    with _open_parquet(source) as file:
        if key not in file.schema_arrow.names:
            raise UserError(f"{source.name}: no column {key!r}{_which(file.schema_arrow.names)}")
        row = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
        for batch in file.iter_batches(row_groups=range(piece.start, piece.end), columns=[key], batch_size=1024):
            for text in batch.column(0).to_pylist():
                row += 1
                if isinstance(text, str):
                    yield text
                else:
                    problems.add(row, 1, f"row {row}: {key!r} is not a text but {text!r:.40}")
    problems.check()


# --- words ------------------------------------------------------------------------------------------------------


def _is_text(file: Path, folder: Path) -> bool:
    inside = file.relative_to(folder)
    if any(name.startswith(".") for name in inside.parts) or not file.is_file():
        return False
    suffix = Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix
    return suffix.lower() in KINDS


def _matching(pattern: Path) -> Iterator[Path]:
    names = glob.iglob(str(pattern), recursive=True)  # noqa: PTH207 (pathlib's takes no absolute patterns)
    return (file for file in map(Path, names) if file.is_file())


def _nothing(path: Path) -> str:
    if path.is_dir():
        return f"no files with {', '.join(KINDS)} in this folder"
    return "no file matches" if glob.has_magic(str(path)) else "no such file, folder or dataset"


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as JSON can write it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _which(keys: Iterable[str]) -> str:
    names = [*keys][:8]
    return f"; there are {', '.join(map(repr, names))}: choose one with --key" if names else ""
