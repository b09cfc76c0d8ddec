"""Where a run's tokens come from.

``training.dataset`` and ``validation.dataset`` name ``text`` (files, or a data set of the hub, tokenized while they
are read), ``tokens`` (what ``primus data prepare`` writes), or a data set that the engine knows;
``training.mock_data`` makes tokens up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets.text_datasets import DATASETS

from primus_core.data import datasets, sources
from primus_core.data import samples as token_samples
from primus_core.data.head import beside
from primus_core.data.indexed import IndexedReader
from primus_core.data.tokenizer import find_tokenizer
from primus_core.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from torchtitan.config import JobConfig

    from primus_core.run.context import Run

type Build = Callable[..., Any]
type Batch = tuple[dict[str, torch.Tensor], torch.Tensor]

_MEGATRONS_SEED = 1234


# --- loaders ------------------------------------------------------------------------------------------------------


def train_loader(
    run: Run,
    vocab_size: int,
    build: Build,
    *,
    dp_world_size: int,
    dp_rank: int,
    tokenizer: BaseTokenizer | None,
    job_config: JobConfig,
) -> Any:
    """Batches of one data-parallel rank, without end or as many as the run needs."""
    job, section = job_config, job_config.training
    batch = max(section.global_batch_size, section.local_batch_size * dp_world_size)
    place = (section.local_batch_size, dp_rank, dp_world_size, asdict(section.dataloader))
    fixed = _fixed(run, "training", job, vocab_size, section.steps * batch)
    if fixed is not None:
        return Samples(fixed, *place)
    if section.dataset == "text":
        return _text(run, "training", job, vocab_size, tokenizer, place, endless=True)
    return _engines_own(build, dp_world_size=dp_world_size, dp_rank=dp_rank, tokenizer=tokenizer, job_config=job)


def validation_loader(run: Run, build: Build, **given: Any) -> Any:
    """The same batches at each validation."""
    job: JobConfig = given["job_config"]
    section = job.validation
    place = (section.local_batch_size, given["dp_rank"], given["dp_world_size"], asdict(section.dataloader))
    steps = section.steps if section.steps > 0 else None
    count = steps and steps * section.local_batch_size * given["dp_world_size"]
    vocab_size = run.config["model"].get("vocab_size", _LARGE)
    fixed = _fixed(run, "validation", job, vocab_size, count)
    if fixed is not None:
        return Samples(fixed, *place, again=True)
    if section.dataset == "text":
        return _text(run, "validation", job, vocab_size, given["tokenizer"], place, endless=given["infinite"])
    return _engines_own(build, **given)


def _fixed(run: Run, name: str, job: JobConfig, vocab_size: int, count: int | None) -> Dataset[torch.Tensor] | None:
    """Samples that have numbers, where the run takes such."""
    section = getattr(job, name)
    if run.config["training"].get("mock_data"):
        seed = (job.debug.seed or 0) + (name == "validation")
        return Ramps(section.seq_len + 1, vocab_size, seed, count)
    if section.dataset != "tokens":
        return None
    prefix = Path(_path(section, name))
    if (known := _prepared(prefix).get("vocab_size", 0)) > vocab_size:
        raise UserError(f"{name}.dataset_path: {prefix} has {known:,} tokens, the model's vocabulary {vocab_size:,}")
    seed = _MEGATRONS_SEED if job.debug.seed is None else job.debug.seed
    return Tokens(token_samples.Samples(IndexedReader(prefix), section.seq_len, count, seed))


def _text(
    run: Run, name: str, job: JobConfig, vocab_size: int, tokenizer: Any, place: tuple[Any, ...], endless: bool
) -> Any:
    section = getattr(job, name)
    batch, rank, ranks, options = place
    if (known := tokenizer.get_vocab_size()) > vocab_size:
        raise UserError(
            f"model.hf_assets_path: the tokenizer has {known:,} tokens, the model's vocabulary {vocab_size:,}; "
            "set model.vocab_size or take another tokenizer"
        )
    read = _reader(_path(section, name), run.config[name].get("dataset_key", "text"))
    documents = Documents(read, tokenizer, section.seq_len, rank, ranks, endless, again=name == "validation")
    return ParallelAwareDataloader(documents, rank, ranks, batch_size=batch, **options)


def _engines_own(build: Build, **given: Any) -> Any:
    try:
        return build(**given)
    except (ConnectionError, FileNotFoundError) as error:
        section = given["job_config"].training
        raise EnvironmentFault(
            f"training.dataset: {section.dataset} cannot be had: {error}; "
            "data in files is training.dataset: text or tokens, made-up data training.mock_data: true"
        ) from error


def _path(section: Any, name: str) -> str:
    if not section.dataset_path:
        raise UserError(f"{name}.dataset_path: {section.dataset} needs a path")
    return str(section.dataset_path)


# --- samples by number --------------------------------------------------------------------------------------------


class Samples(BaseDataLoader):  # type: ignore[misc]
    """Batches of numbered samples [batch, length], dealt to the ranks: which samples are in a global batch depends
    neither on how many ranks there are nor on interruptions. The position is the number of samples that all ranks
    together have had; ``again`` starts each iteration at 0.
    """

    def __init__(
        self,
        dataset: Dataset[torch.Tensor],
        batch: int,
        rank: int,
        ranks: int,
        options: dict[str, Any],
        again: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch, self.rank, self.ranks = batch, rank, ranks
        self.options = {name: value for name, value in options.items() if value}
        self.again = again
        self.position = 0

    def __iter__(self) -> Iterator[Batch]:
        if self.again:
            self.position = 0
        stride = self.batch * self.ranks
        starts = range(self.position, len(self.dataset) - stride + 1, stride)  # type: ignore[arg-type]
        mine = self.rank * self.batch
        numbers = _Again(lambda: ([*range(at + mine, at + mine + self.batch)] for at in starts))
        for tokens in DataLoader(self.dataset, batch_sampler=numbers, **self.options):
            self.position += stride
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["samples"]


class _Again:
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


class Tokens(Dataset[torch.Tensor]):
    """Samples of prepared tokens, in Megatron's order."""

    def __init__(self, samples: token_samples.Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self.samples[number])


class Ramps(Dataset[torch.Tensor]):
    """Made-up samples of ``length`` tokens, each counting up from somewhere, round and round: models learn it soon."""

    def __init__(self, length: int, vocab_size: int, seed: int, count: int | None) -> None:
        self.length, self.seed = length, seed
        self.vocab_size = min(vocab_size, 256)
        self.count = count or _MADE_UP

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        random = torch.Generator().manual_seed((self.seed << 40) + number)
        first = torch.randint(self.vocab_size, (1,), generator=random)
        return (first + torch.arange(self.length)) % self.vocab_size


_MADE_UP = 256
_LARGE = 1 << 62


# --- text ---------------------------------------------------------------------------------------------------------


class Documents(IterableDataset[Any]):
    """Documents laid end to end and cut into samples; each rank takes every so manyth document, tokenizes it with
    begin and end, and keeps the rest of a sample for the next. Both, how many documents were read and the rest, are
    its state.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[str]],
        tokenizer: BaseTokenizer,
        length: int,
        rank: int,
        ranks: int,
        endless: bool,
        again: bool,
    ) -> None:
        self.read, self.tokenizer, self.length = read, tokenizer, length
        self.rank, self.ranks = rank, ranks
        self.endless, self.again = endless, again
        self.documents = 0
        self.rest: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        if self.again:
            self.documents, self.rest = 0, []
        worker = get_worker_info()
        workers = worker.num_workers if worker else 1
        mine = self.rank * workers + (worker.id if worker else 0)
        while True:
            for text in islice(self.read(), mine + self.documents * self.ranks * workers, None, self.ranks * workers):
                self.rest += self.tokenizer.encode(text, add_bos=True, add_eos=True)
                self.documents += 1
                while len(self.rest) > self.length:
                    sample = torch.tensor(self.rest[: self.length + 1])
                    del self.rest[: self.length + 1]
                    yield {"input": sample[:-1]}, sample[1:]
            if not self.documents:
                raise UserError(f"training.dataset_path: fewer documents than ranks ({self.ranks * workers})")
            if not self.endless:
                return
            self.documents = 0

    def state_dict(self) -> dict[str, Any]:
        return {"documents": self.documents, "rest": list(self.rest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.documents, self.rest = state["documents"], list(state["rest"])


def _reader(path: str, key: str) -> Callable[[], Iterator[str]]:
    """What reads all documents of a path: files, folders and patterns as of ``primus data prepare``, ``hf://...``."""
    if path.startswith(datasets.HUB):
        return datasets.on_hub(path, key).read
    files, _ = sources.find_files([path], key)

    def read() -> Iterator[str]:
        for part in sources.cut(files, "file"):
            for piece in part:
                yield from sources.read(files[piece.source], piece, "file")

    return read


# --- tokenizers ---------------------------------------------------------------------------------------------------


class Ends(BaseTokenizer):  # type: ignore[misc]
    """In the place of a tokenizer where tokens are there already: knows which one ends a document."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.eos_id = end

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 0


def tokenizer(run: Run, build: Build | None, job: JobConfig) -> Any:
    """The tokenizer in ``model.hf_assets_path``, a folder or a name on the hub, where text is to be tokenized."""
    mock = run.config["training"].get("mock_data")
    for name in ("training", "validation"):
        asked = getattr(job, name).dataset
        if not mock and asked not in ("text", "tokens", *DATASETS):
            raise UserError(
                f"{name}.dataset: there is no {asked!r}; there are text, tokens, {', '.join(sorted(DATASETS))}"
            )
    if mock or job.training.dataset == "tokens":
        record = {} if mock else _prepared(Path(_path(job.training, "training")))
        return Ends(record.get("eod", -1))
    if build is None or Path(job.model.hf_assets_path).is_dir():
        return build and build(job)
    job.model.hf_assets_path = str(find_tokenizer(job.model.hf_assets_path).file.parent)
    return build(job)


def _prepared(prefix: Path) -> dict[str, Any]:
    """What ``primus data prepare`` noted of the tokenizer; nothing where the record is missing."""
    for name in (prefix.name, prefix.name.removesuffix("-train").removesuffix("-valid")):
        file = beside(prefix.with_name(name), ".json")
        if file.is_file():
            record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")).get("tokenizer") or {}
            return {name: value for name, value in record.items() if value is not None}
    return {}
