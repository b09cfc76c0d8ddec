"""``primus data prepare``: documents to ``.bin``/``.idx``, in parallel, resumable, the same bytes every time.

The input is cut into parts. Each part becomes a file of tokens in ``PREFIX.work/``, made by any worker at any time;
then the parts are joined in order. What is killed continues where it was, and the index is the last file to appear.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from primus_core.data.datasets import NamedText
from primus_core.data.head import beside
from primus_core.data.indexed import IndexedReader, IndexedWriter, token_dtype
from primus_core.data.needs import need
from primus_core.data.sources import Slice, Source, Split, cut, read
from primus_core.data.sources import describe as describe_file
from primus_core.data.tokenizer import TokenizerFile, describe, train_tokenizer
from primus_core.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 1
TRAINING_BYTES = 512 << 20
BATCH_CHARACTERS = 1 << 18
BATCH_DOCUMENTS = 512


class Progress(Protocol):
    """Told how far the work is, in bytes of input."""

    def __call__(self, done: int, total: int, tokens: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked; everything here but ``workers`` and ``force`` can change the tokens."""

    output: Path
    tokenizer: TokenizerFile | None
    train_vocab_size: int | None = None
    split_documents: Split = "file"
    append_eod: bool = True
    special_tokens: bool = True
    valid: float = 0.0
    seed: int = 0
    workers: int = 1
    force: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was written: the record that ``PREFIX.json`` holds."""

    record: Mapping[str, Any]
    prefixes: Mapping[str, Path]


def prepare(inputs: Sequence[Source | NamedText], options: Options, progress: Progress | None = None) -> Outcome:
    """Write ``PREFIX.bin``/``.idx`` (or ``PREFIX-train`` and ``PREFIX-valid``), ``PREFIX.json`` and, when it is
    trained here, ``PREFIX-tokenizer/``.

    Raises ``UserError`` for bad input and for output that exists; nothing is left half-written.
    """
    need("numpy")
    need("tokenizers")
    with _work_folder(options.output) as work:
        plan = _plan(inputs, options)
        if not _same(work / "plan.json", plan):
            if not options.force and (there := [path for path in _outputs(options.output) if path.exists()]):
                raise UserError(f"{there[0]} exists; --force replaces it")
            _clear(work)
            _write_json(work / "plan.json", plan)
        sources = _in_files(inputs, work / "inputs")
        parts = cut(sources, options.split_documents)
        tokenizer = options.tokenizer or _trained(work / "tokenizer", sources, parts, options)
        if options.append_eod and tokenizer.eod is None:
            raise UserError(
                f"{tokenizer.name}: no end-of-document token is known: name it with --eod-token, or --no-append-eod"
            )
        job = _Job(work, sources, tokenizer, options)
        _tokenize(job, parts, progress)
        return _join(job, len(parts))


# --- the work folder --------------------------------------------------------------------------------------------


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """The folder of unfinished work, held by one process at a time; it stays when it can be continued."""
    work = beside(output, ".work")
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{output}: another process is preparing it") from error
        try:
            yield work
        except UserError:
            shutil.rmtree(work)
            raise
        shutil.rmtree(work)


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _outputs(output: Path) -> list[Path]:
    prefixes = [output, beside(output, "-train"), beside(output, "-valid")]
    files = [beside(prefix, suffix) for prefix in prefixes for suffix in (".idx", ".bin")]
    return [*files, beside(output, ".json"), beside(output, "-tokenizer")]


def _plan(inputs: Sequence[Source | NamedText], options: Options) -> dict[str, Any]:
    """All that the result depends on."""
    tokenizer = options.tokenizer
    return {
        "format": FORMAT,
        "inputs": [_identity(source) for source in inputs],
        "tokenizer": [tokenizer.sha256, tokenizer.eod] if tokenizer else options.train_vocab_size,
        "options": _options(options),
    }


def _identity(source: Source | NamedText) -> list[Any]:
    if isinstance(source, NamedText):
        return [source.name]
    return [source.name, source.kind, source.key, source.size, source.mtime_ns]


def _in_files(inputs: Sequence[Source | NamedText], folder: Path) -> list[Source]:
    """The inputs as files: named texts are written out first, so that they are cut and resumed like all others."""
    sources = []
    for number, source in enumerate(inputs):
        if isinstance(source, NamedText):
            file = folder / f"{number:06}.jsonl"
            if not file.exists():
                folder.mkdir(exist_ok=True)
                with beside(file, ".new").open("w", encoding="utf-8") as lines:
                    lines.writelines(json.dumps({"text": text}) + "\n" for text in source.read())
                beside(file, ".new").replace(file)
            source = describe_file(file, "text", source.name)
        sources.append(source)
    return sources


def _options(options: Options) -> dict[str, Any]:
    left_out = {"output", "tokenizer", "workers", "force"}
    return {name.name: getattr(options, name.name) for name in dataclasses.fields(options) if name.name not in left_out}


def _same(file: Path, value: Any) -> bool:
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == value


def _write_json(file: Path, value: Any) -> None:
    """Whole or not at all."""
    new = beside(file, ".new")
    new.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(file)


# --- tokenizer --------------------------------------------------------------------------------------------------


def _trained(folder: Path, sources: list[Source], parts: list[list[Slice]], options: Options) -> TokenizerFile:
    if options.train_vocab_size is None:
        raise UserError("no tokenizer: give --tokenizer FOLDER, or --train-tokenizer VOCABULARY")
    if not folder.is_dir():
        new = beside(folder, ".new")
        texts = _sample(sources, parts, options)
        train_tokenizer(texts, options.train_vocab_size, new)
        new.replace(folder)
    return describe(str(folder), folder / "tokenizer.json")


def _sample(sources: list[Source], parts: list[list[Slice]], options: Options) -> Iterator[str]:
    """The first documents of each part, alike from all, up to ``TRAINING_BYTES`` together."""
    for part in parts:
        left = TRAINING_BYTES // len(parts)
        for text in _documents(sources, part, options):
            yield text
            left -= len(text)
            if left <= 0:
                break


def _documents(sources: list[Source], part: Iterable[Slice], options: Options) -> Iterator[str]:
    for piece in part:
        yield from read(sources[piece.source], piece, options.split_documents)


# --- parts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker needs for any part."""

    work: Path
    sources: list[Source]
    tokenizer: TokenizerFile
    options: Options

    def part(self, number: int, suffix: str) -> Path:
        return self.work / f"part-{number:06}{suffix}"


class _Encoder:
    """One worker's tokenizer."""

    def __init__(self, job: _Job) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.job = job
        self.tokenizer = job.tokenizer.load()

    def encode(self, number: int, part: list[Slice]) -> int:
        """Write one part: tokens, lengths with hashes of the documents, and a record that says it is complete."""
        import numpy as np

        job = self.job
        end = [job.tokenizer.eod] if job.options.append_eod and job.tokenizer.eod is not None else []
        slices: list[dict[str, int]] = []
        lengths: list[int] = []
        hashes: list[int] = []
        checksum = hashlib.blake2b(digest_size=16)
        with job.part(number, ".bin").open("wb") as file:
            for piece in part:
                documents, characters, empty = 0, 0, 0
                texts = read(job.sources[piece.source], piece, job.options.split_documents)
                for batch in _batches(texts):
                    for text, ids in zip(batch, self._encode(batch), strict=True):
                        characters += len(text)
                        if not ids:
                            empty += 1
                            continue
                        ids.extend(end)
                        data = np.array(ids, token_dtype(job.tokenizer.vocab_size)).tobytes()
                        checksum.update(data)
                        file.write(data)
                        lengths.append(len(ids))
                        hashes.append(_hash(text, job.options.seed))
                        documents += 1
                slices.append(
                    {"source": piece.source, "documents": documents, "characters": characters, "empty": empty}
                )
        with job.part(number, ".npz").open("wb") as file:
            np.savez(file, lengths=np.array(lengths, np.int64), hashes=np.array(hashes, np.uint64))
        tokens = sum(lengths)
        record = {"slices": slices, "tokens": tokens, "blake2b": checksum.hexdigest()}
        _write_json(job.part(number, ".json"), record)
        return tokens

    def _encode(self, texts: list[str]) -> list[list[int]]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=self.job.options.special_tokens)
        return [encoding.ids for encoding in encodings]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _hash(text: str, seed: int) -> int:
    """Decides on which side of a split a document falls: equal texts always on the same."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def _tokenize(job: _Job, parts: list[list[Slice]], progress: Progress | None) -> None:
    total = sum(piece.weight for part in parts for piece in part)
    weights = [sum(piece.weight for piece in part) for part in parts]
    todo = [number for number in range(len(parts)) if not job.part(number, ".json").exists()]
    done = total - sum(weights[number] for number in todo)
    tokens = 0
    for number, made in _encoded(job, parts, todo):
        done += weights[number]
        tokens += made
        if progress:
            progress(done, total, tokens)


def _encoded(job: _Job, parts: list[list[Slice]], todo: list[int]) -> Iterator[tuple[int, int]]:
    """Parts as they get ready, with their numbers of tokens."""
    if min(job.options.workers, len(todo)) <= 1:
        encoder = _Encoder(job)
        for number in todo:
            yield number, encoder.encode(number, parts[number])
        return
    context = multiprocessing.get_context("spawn")
    workers = min(job.options.workers, len(todo))
    with ProcessPoolExecutor(workers, context, _start_worker, (job,)) as pool:
        futures: dict[Future[int], int] = {pool.submit(_work, number, parts[number]): number for number in todo}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "a worker process was ended from outside (out of memory?); the same command continues where it was"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_encoder: _Encoder


def _start_worker(job: _Job) -> None:
    global _encoder
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _encoder = _Encoder(job)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent.join()
    os._exit(1)


def _work(number: int, part: list[Slice]) -> int:
    return _encoder.encode(number, part)


# --- joining ----------------------------------------------------------------------------------------------------


def _join(job: _Job, parts: int) -> Outcome:
    """Parts to final files: written aside, read back and compared, then moved into place, the index last."""
    import numpy as np

    dtype = token_dtype(job.tokenizer.vocab_size)
    tables = [dict(np.load(job.part(number, ".npz"))) for number in range(parts)]
    hashes = np.concatenate([np.empty(0, np.uint64), *(table["hashes"] for table in tables)])
    if not len(hashes):
        raise UserError(f"no documents in {', '.join(source.name for source in job.sources[:5])}")
    limit = _limit(hashes, job.options.valid)
    splits = {"": None} if limit is None else {"-train": False, "-valid": True}
    described = {}
    for name, wanted in splits.items():
        aside = job.work / f"joined{name}"
        checksum = hashlib.blake2b(digest_size=16)
        with IndexedWriter(aside, dtype) as writer:
            for number, table in enumerate(tables):
                tokens = _part_tokens(job, number, dtype)
                lengths = table["lengths"]
                if wanted is not None:
                    chosen = (table["hashes"] <= limit) == wanted
                    tokens = tokens[np.repeat(chosen, lengths)]
                    lengths = lengths[chosen]
                writer.add(tokens, lengths)
                checksum.update(tokens.tobytes())
        described[name] = _verified(aside, checksum.hexdigest(), writer.documents, writer.tokens)
    return _publish(job, parts, described)


def _limit(hashes: NDArray[np.uint64], valid: float) -> np.uint64 | None:
    """The hash up to which a document is for validation: ``valid`` of all, at least one, never all."""
    import numpy as np

    if not valid:
        return None
    kinds = np.unique(hashes)
    if len(kinds) < 2:
        raise UserError(f"--valid {valid}: one document cannot be split; see --split-documents")
    ordered = np.sort(hashes)
    limit = min(ordered[max(round(valid * len(hashes)), 1) - 1], kinds[-2])
    return np.uint64(limit)


def _part_tokens(job: _Job, number: int, dtype: str) -> NDArray[Any]:
    import numpy as np

    tokens = np.fromfile(job.part(number, ".bin"), dtype)
    record = json.loads(job.part(number, ".json").read_text(encoding="utf-8"))
    if hashlib.blake2b(tokens.tobytes(), digest_size=16).hexdigest() != record["blake2b"]:
        raise EnvironmentFault(f"{job.part(number, '.bin')} changed on disk; remove {job.work} and start again")
    return tokens


def _verified(prefix: Path, checksum: str, documents: int, tokens: int) -> dict[str, Any]:
    """Read back what was written; raises ``EnvironmentFault`` when the disk gives something else."""
    reader = IndexedReader(prefix)
    found = hashlib.blake2b(reader.tokens.tobytes(), digest_size=16).hexdigest()
    if (found, len(reader), reader.tokens_total) != (checksum, documents, tokens):
        raise EnvironmentFault(f"{prefix}: reads back differently from what was written")
    return {"documents": documents, "tokens": tokens, "dtype": reader.dtype, "blake2b": checksum}


def _publish(job: _Job, parts: int, described: Mapping[str, dict[str, Any]]) -> Outcome:
    output, options, tokenizer = job.options.output, job.options, job.tokenizer
    kept = {beside(output, name) for name in described}
    for stale in _outputs(output):
        if stale.suffix == ".idx" or (stale.suffix == ".bin" and stale.with_suffix("") not in kept):
            stale.unlink(missing_ok=True)
    folder = beside(output, "-tokenizer")
    if folder.exists():
        shutil.rmtree(folder)
    if options.tokenizer is None:
        shutil.copytree(tokenizer.file.parent, folder)
    record = {
        "format": FORMAT,
        "sources": _source_records(job, parts),
        "tokenizer": {
            "path": folder.name if options.tokenizer is None else tokenizer.name,
            "trained": options.tokenizer is None,
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eod_token": tokenizer.eod_token,
            "eod": tokenizer.eod,
        },
        "options": _options(options),
        "files": {beside(output, name).name: numbers for name, numbers in described.items()},
    }
    for suffix in (".bin", ".idx"):
        if suffix == ".idx":
            _write_json(beside(output, ".json"), record)
        for name in described:
            (job.work / f"joined{name}{suffix}").replace(beside(output, f"{name}{suffix}"))
    return Outcome(record, {name.removeprefix("-"): beside(output, name) for name in described})


def _source_records(job: _Job, parts: int) -> list[dict[str, Any]]:
    """What each source gave, with a fingerprint of its texts that no file format or compression changes."""
    import numpy as np

    records = [
        {"name": source.name, "bytes": source.size, "documents": 0, "characters": 0, "empty": 0}
        for source in job.sources
    ]
    prints = [hashlib.blake2b(digest_size=16) for _ in job.sources]
    for number in range(parts):
        hashes = np.load(job.part(number, ".npz"))["hashes"]
        at = 0
        for piece in json.loads(job.part(number, ".json").read_text(encoding="utf-8"))["slices"]:
            for key in ("documents", "characters", "empty"):
                records[piece["source"]][key] += piece[key]
            prints[piece["source"]].update(hashes[at : at + piece["documents"]].tobytes())
            at += piece["documents"]
    return [{**record, "fingerprint": found.hexdigest()} for record, found in zip(records, prints, strict=True)]
