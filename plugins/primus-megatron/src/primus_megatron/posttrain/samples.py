"""Fine-tuning data to tokens on disk, and several samples into one sequence. Imports neither torch nor the engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_core.data.sources import BadRecords, Source, find_files, json_objects, whole
from primus_core.errors import EnvironmentFault, UserError
from primus_megatron.posttrain.conversations import BadRecord, Part, parts

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples end to end: ``tokens`` (all,), ``learnt`` (all,) of bool, ``ends`` (samples + 1,) from 0."""

    tokens: NDArray[np.int32]
    learnt: NDArray[np.bool_]
    ends: NDArray[np.int64]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens that are put in, of each sample: all but the last, which is only predicted."""
        return np.diff(self.ends) - 1

    def cut(self, start: float, end: float) -> Samples:
        """The samples from a part of them to another, such as 0.0 to 0.9."""
        first, last = round(start * len(self)), round(end * len(self))
        return Samples(self.tokens, self.learnt, self.ends[first : last + 1])


def load(inputs: Sequence[str], split: str, layout: str, tokenizer: Any, longest: int, cache: Path) -> Samples:
    """The samples of files or of a dataset on the hub, of ``longest`` + 1 tokens at most; made once into ``cache``.

    Longer ones are cut at their end; those of which then nothing is left to learn are dropped. Raises ``UserError``
    with the places of bad records.
    """
    sources = _sources(inputs)
    folder = cache / _key(sources, inputs, split, layout, tokenizer, longest)
    if not folder.is_dir():
        records = _records(sources, layout, tokenizer) if sources else _hub(inputs[0], split, layout, tokenizer)
        _write(folder, _encoded(records, tokenizer), longest, ", ".join(inputs))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "learnt", "ends")}
    return Samples(**arrays, dropped=json.loads((folder / "dropped.json").read_text()))


def pack(lengths: NDArray[np.int64], room: int) -> list[list[int]]:
    """Samples, none longer than ``room``, into as few sequences of ``room`` tokens as best-fit decreasing finds."""
    free: list[tuple[int, int]] = []
    packs: list[list[int]] = []
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        place = bisect_left(free, (length, -1))
        if place == len(free):
            packs.append([])
            left, number = room, len(packs) - 1
        else:
            left, number = free.pop(place)
        packs[number].append(sample)
        insort(free, (left - length, number))
    return packs


# --- reading ----------------------------------------------------------------------------------------------------


def _sources(inputs: Sequence[str]) -> list[Source]:
    """Files of JSON lines; none where one name that is no path means a dataset on the hub."""
    if len(inputs) == 1 and inputs[0].count("/") <= 1 and not Path(inputs[0]).exists() and not Path(inputs[0]).suffix:
        return []
    sources, _ = find_files(inputs, "")
    if other := [source.name for source in sources if source.kind != "json"]:
        raise UserError(f"{other[0]}: fine-tuning reads JSON lines (.jsonl)")
    return sources


def _records(sources: Sequence[Source], layout: str, tokenizer: Any) -> Iterator[list[Part]]:
    for source in sources:
        problems = BadRecords(source, whole(source))
        for number, record in json_objects(source, whole(source), problems):
            try:
                yield parts(record, layout, tokenizer)
            except BadRecord as error:
                problems.add(number, 1, str(error))
        problems.check()


def _hub(name: str, split: str, layout: str, tokenizer: Any) -> Iterator[list[Part]]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"sft_dataset_name: there is no file {name}; to fetch it from the Hugging Face hub: pip install datasets"
        ) from error
    try:
        rows = load_dataset(name, split=split)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"sft_dataset_name: {name}: {error}") from error
    except ConnectionError as error:
        raise EnvironmentFault(f"sft_dataset_name: {name}: the hub cannot be reached: {error}") from error
    for number, row in enumerate(rows):
        try:
            yield parts(row, layout, tokenizer)
        except BadRecord as error:
            raise UserError(f"{name}, row {number}: {error}") from error


# --- tokens -----------------------------------------------------------------------------------------------------


def _encoded(records: Iterator[list[Part]], tokenizer: Any) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Tokens of each record and which of them are learnt: those that lie in a learnt part with all their characters."""
    first = _first_token(tokenizer)
    while batch := [record for record, _ in zip(records, range(_BATCH), strict=False)]:
        texts = ["".join(part.text for part in record) for record in batch]
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        for record, ids, offsets in zip(batch, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            ends = np.cumsum([0, *(len(part.text) for part in record)])
            within = np.zeros(int(ends[-1]) + 1, np.int64)
            for part, start, end in zip(record, ends, ends[1:], strict=False):
                within[start:end] = part.learnt
            learnt = np.concatenate([[0], np.cumsum(within)])
            spans = np.array(offsets, np.int64).reshape(-1, 2)
            inside = learnt[spans[:, 1]] - learnt[spans[:, 0]]
            flags = (inside == spans[:, 1] - spans[:, 0]) & (inside > 0)
            tokens = np.array(ids, np.int32)
            if first is not None and (not ids or ids[0] != first):
                tokens, flags = np.concatenate([[first], tokens]), np.concatenate([[False], flags])
            yield tokens, flags


def _first_token(tokenizer: Any) -> int | None:
    """The token that the tokenizer puts before each text, if it does."""
    ids = tokenizer("").input_ids
    return ids[0] if ids and ids[0] == tokenizer.bos_token_id else None


def _write(folder: Path, samples: Iterator[tuple[NDArray[Any], NDArray[np.bool_]]], longest: int, name: str) -> None:
    tokens: list[NDArray[Any]] = []
    learnt: list[NDArray[np.bool_]] = []
    dropped = 0
    for ids, flags in samples:
        ids, flags = ids[: longest + 1], flags[: longest + 1]
        if flags[1:].any():
            tokens.append(ids)
            learnt.append(flags)
        else:
            dropped += 1
    if not tokens:
        raise UserError(f"{name}: no samples" + (f"; {dropped} have nothing to learn in seq_length" if dropped else ""))
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    np.save(new / "tokens.npy", np.concatenate(tokens).astype(np.int32))
    np.save(new / "learnt.npy", np.concatenate(learnt))
    np.save(new / "ends.npy", np.cumsum([0, *map(len, tokens)], dtype=np.int64))
    (new / "dropped.json").write_text(json.dumps(dropped))
    new.rename(folder)


def _key(
    sources: Sequence[Source], inputs: Sequence[str], split: str, layout: str, tokenizer: Any, longest: int
) -> str:
    files = [(str(source.path.absolute()), source.size, source.mtime_ns) for source in sources] or [*inputs, split]
    template = [tokenizer.chat_template, tokenizer.eos_token, tokenizer.backend_tokenizer.to_str()]
    described: Mapping[str, Any] = {"files": files, "layout": layout, "longest": longest, "tokenizer": template}
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=8).hexdigest()
