"""What fine-tuning adds to training: its data, and adapters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from megatron.training import get_args
from megatron.training.checkpointing import checkpoint_exists, load_checkpoint, save_checkpoint

from primus_core.errors import UserError
from primus_megatron.posttrain import lora
from primus_megatron.posttrain.dataset import Datasets

if TYPE_CHECKING:
    from primus_core.run.context import Run


class FineTuning:
    """Fine-tuning of one run: ``datasets`` for Megatron, and what is done to the model before and after training."""

    def __init__(self, run: Run, args: argparse.Namespace) -> None:
        self.run = run
        self.lora = lora.Options.of(run.config.get("lora"))
        self.datasets = Datasets(run)
        self.chunks: list[Any] = []
        args.create_attention_mask_in_dataloader = False
        args.dataloader_inter_document_masking = bool(run.config.get("enable_packed_sequences"))

    def built(self, chunks: list[Any]) -> list[Any]:
        """Called with the model's chunks before they are wrapped: load what is adapted, then add the adapters."""
        if self.lora is None:
            return chunks
        args = get_args()
        if args.finetune or not checkpoint_exists(args.load):
            self._load_base(args, chunks)
        for chunk in chunks:
            if missing := lora.add(chunk, self.lora, args.seed):
                self.run.note(f"lora.target_modules: no layer of this model matches {', '.join(missing)}")
        trained = sum(p.numel() for chunk in chunks for p in chunk.parameters() if p.requires_grad)
        every = sum(p.numel() for chunk in chunks for p in chunk.parameters())
        self.run.note(f"LoRA of dim {self.lora.dim}: {trained:,} of {every:,} parameters on this rank are trained")
        self.chunks = chunks
        return chunks

    def _load_base(self, args: argparse.Namespace, chunks: list[Any]) -> None:
        """Weights without adapters, which Megatron could not load into a model that has them."""
        if args.load is None and args.pretrained_checkpoint is None:
            self.run.note("no pretrained_checkpoint: adapters on random weights")
            return
        if not any(checkpoint_exists(path) for path in (args.load, args.pretrained_checkpoint) if path):
            raise UserError(f"pretrained_checkpoint: no checkpoint in {args.pretrained_checkpoint or args.load}")
        load_checkpoint(chunks, None, None)
        args.load = args.pretrained_checkpoint = None

    def finished(self) -> None:
        """Called after training: write the model with its adapters merged, if that is wanted."""
        args = get_args()
        if self.lora is None or not self.lora.save_merged or args.curr_iteration + 1 < args.train_iters:
            return
        merged = self.run.folder / self.lora.save_merged
        for chunk in self.chunks:
            lora.merge(chunk)
        args.save, args.no_save_optim, args.no_save_rng, args.async_save = str(merged), True, True, False
        save_checkpoint(args.iteration, self.chunks, None, None, 0, release=True)
        self.run.note(f"adapters merged into {merged}")
