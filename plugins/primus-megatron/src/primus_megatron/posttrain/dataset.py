"""Batches of fine-tuning data for Megatron's training loop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.datasets.utils import Split
from megatron.training import get_args

from primus_core.errors import UserError
from primus_megatron.data import has_data
from primus_megatron.posttrain.samples import Samples, load, pack

if TYPE_CHECKING:
    from primus_core.run.context import Run


class FineTuningDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of ``seq_length`` tokens, each of one sample or, packed, of several; again and again in new order.

    An item has ``tokens``, ``labels``, ``position_ids`` (seq_length,) of int64 and ``loss_mask`` (seq_length,) of
    float32: 1 where a learnt token is predicted. Packed items also have ``cu_seqlens`` (seq_length + 1,), the starts
    of the samples and of the padding filled up with seq_length, and ``max_seqlen``, both int32. Positions count from
    the start of each sample.
    """

    def __init__(
        self, samples: Samples, *, seq_length: int, packed: bool, pad: int, seed: int, length: int, split: Split
    ) -> None:
        self.samples = samples
        self.seq_length = seq_length
        self.packed = packed
        self.pad = pad
        self.seed = seed
        self.split = split
        self.packs = pack(samples.lengths, seq_length) if packed else [[number] for number in range(len(samples))]
        self.length = length or len(self.packs)
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        round_, place = divmod(int(index), len(self.packs))
        return self.sequence(self.packs[self._shuffled(round_)[place]])

    def _shuffled(self, round_: int) -> np.ndarray[Any, Any]:
        if self._order is None or self._order[0] != round_:
            self._order = round_, np.random.default_rng([self.seed, round_]).permutation(len(self.packs))
        return self._order[1]

    def sequence(self, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        """The item with these samples."""
        size = self.seq_length
        tokens, labels = np.full(size, self.pad, np.int64), np.full(size, self.pad, np.int64)
        positions, mask = np.arange(size, dtype=np.int64), np.zeros(size, np.float32)
        starts = [0]
        for number in numbers:
            first, last = self.samples.ends[number : number + 2]
            at, end = starts[-1], starts[-1] + int(last - first) - 1
            tokens[at:end] = self.samples.tokens[first : last - 1]
            labels[at:end] = self.samples.tokens[first + 1 : last]
            mask[at:end] = self.samples.learnt[first + 1 : last]
            positions[at:] -= positions[at]
            starts.append(end)
        item = {"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": positions}
        if self.packed:
            positions[starts[-1] :] -= positions[starts[-1]] if starts[-1] < size else 0
            bounds = np.full(size + 1, size, np.int32)
            bounds[: len(starts)] = starts
            item |= {"cu_seqlens": bounds, "max_seqlen": np.array(np.diff(bounds).max(), np.int32)}
        return {name: torch.from_numpy(value) for name, value in item.items()}


class Datasets:
    """Makes the train, valid and test sets; Megatron calls it on every rank."""

    is_distributed = True

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, wanted: Sequence[int], vp_stage: int | None = None) -> list[FineTuningDataset | None]:
        args, config = get_args(), self.run.config
        train = _paths(config.get("train_data_path")) or _paths(config.get("data_path"))
        inputs = [train or [config["sft_dataset_name"]], *(_paths(config.get(f"{name}_data_path")) for name in _OTHERS)]
        found = [self._load(names) if names else None for names in inputs]
        assert found[0] is not None
        if args.split:
            found = _divided(found[0], args.split)
        if parallel_state.get_tensor_model_parallel_rank() != 0 or not has_data(vp_stage):
            return [None, None, None]
        return [
            self._dataset(args, samples, number, split) if samples is not None and len(samples) else None
            for samples, number, split in zip(found, wanted, Split, strict=True)
        ]

    def _load(self, names: Sequence[str]) -> Samples:
        """The samples, tokenized by the first rank and read by all."""
        config, args = self.run.config, get_args()
        ask = names, config.get("sft_dataset_split") or "train", config.get("sft_conversation_format") or "alpaca"
        cache = self.run.folder / "sft"
        if self.run.rank == 0:
            load(*ask, tokenizer(args), args.seq_length, cache)
        torch.distributed.barrier()
        samples = load(*ask, tokenizer(args), args.seq_length, cache)
        if samples.dropped:
            self.run.note(f"{', '.join(names)}: {samples.dropped} samples have nothing to learn in seq_length tokens")
        return samples

    def _dataset(self, args: argparse.Namespace, samples: Samples, wanted: int, split: Split) -> FineTuningDataset:
        dataset = FineTuningDataset(
            samples,
            seq_length=args.seq_length,
            packed=bool(self.run.config.get("enable_packed_sequences")),
            pad=tokenizer(args).eos_token_id,
            seed=args.seed,
            length=0,
            split=split,
        )
        if split is Split.train:
            filled = samples.lengths.sum() / (len(dataset.packs) * args.seq_length)
            self.run.note(
                f"{len(samples):,} samples in {len(dataset.packs):,} sequences of {args.seq_length:,} tokens, "
                f"{filled:.0%} of them filled"
            )
        batch = args.micro_batch_size * args.data_parallel_size
        several = -(-batch // len(dataset.packs)) * len(dataset.packs)
        dataset.length = several if args.dataloader_type == "cyclic" else max(wanted, batch)
        return dataset


_OTHERS = ("valid", "test")


def tokenizer(args: argparse.Namespace) -> Any:
    """The tokenizer of ``transformers``, with its chat template. Raises ``UserError`` if it cannot be used here."""
    from transformers import AutoTokenizer

    if args.tokenizer_type != "HuggingFaceTokenizer":
        raise UserError(f"tokenizer_type: fine-tuning needs HuggingFaceTokenizer, not {args.tokenizer_type}")
    try:
        found = AutoTokenizer.from_pretrained(args.tokenizer_model)
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer_model: {args.tokenizer_model}: {error}") from error
    if not found.is_fast or found.eos_token is None:
        raise UserError(f"tokenizer_model: {args.tokenizer_model}: a fast tokenizer with an eos_token is needed")
    return found


def _paths(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _divided(samples: Samples, split: str) -> list[Samples | None]:
    """As Megatron's ``split``: the shares of train, valid and test, such as ``95,5,0``."""
    shares = [float(share) for share in str(split).replace("/", ",").split(",")]
    bounds = np.cumsum([0, *shares, *[0] * (3 - len(shares))]) / sum(shares)
    return [samples.cut(start, end) for start, end in pairwise(bounds)]
