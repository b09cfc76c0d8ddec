"""Datasets and batches for Megatron's GPT family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank
from megatron.core.utils import (
    flatten_batch_for_packed_sequences,
    get_batch_on_this_cp_rank,
    get_batch_on_this_tp_rank,
)
from megatron.training import get_args, get_tokenizer
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage


def datasets(samples: Sequence[int], vp_stage: int | None = None) -> list[Any]:
    """The train, valid and test sets of at least so many samples each; None where this rank needs none."""
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        multiple_validation_sets=args.multiple_validation_sets,
        full_validation=args.full_validation,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        tokenizer=get_tokenizer(),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        object_storage_cache_path=args.object_storage_cache_path,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
        allow_ambiguous_pad_tokens=args.allow_ambiguous_pad_tokens,
        fast_cache_load=args.dataloader_fast_cache_load,
        defer_npy_index_mmap=args.dataloader_defer_npy_index_mmap,
        context_parallel_size=args.context_parallel_size,
        data_parallel_size=args.data_parallel_size,
        sequence_parallel_size=args.tensor_model_parallel_size * args.sequence_parallel,
        inter_document_masking=args.dataloader_inter_document_masking,
    )
    kind = MockGPTDataset if args.mock_data else GPTDataset

    def wanted() -> bool:
        return parallel_state.get_tensor_model_parallel_rank() == 0 and has_data(vp_stage)

    return BlendedMegatronDatasetBuilder(kind, samples, wanted, config).build()


datasets.is_distributed = True  # type: ignore[attr-defined]


def has_data(vp_stage: int | None) -> bool:
    """Whether this rank embeds tokens or computes losses, or needs to know where documents end."""
    args = get_args()
    return is_first_or_last_pipeline_stage(vp_stage) or _predicts(vp_stage) or args.dataloader_inter_document_masking


def _predicts(vp_stage: int | None) -> bool:
    args = get_args()
    return args.mtp_num_layers is not None and mtp_on_this_rank(
        args.pipeline_model_parallel_layout, args.mtp_num_layers, ignore_virtual=vp_stage is None, vp_stage=vp_stage
    )


def batch(iterator: Iterator[dict[str, torch.Tensor]] | None, vp_stage: int | None = None) -> dict[str, Any]:
    """The next micro batch on this rank's device, its part of the sequence where context is parallel.

    ``tokens``, ``labels``, ``loss_mask``, ``position_ids`` of [micro batch, tokens], ``attention_mask`` (or None) and
    ``packed`` (or None). All are None on pipeline stages in the middle.
    """
    args = get_args()
    names = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
    if not has_data(vp_stage):
        return {**dict.fromkeys(names), "packed": None}
    values: dict[str, Any] = dict.fromkeys((*names, "cu_seqlens_padded", "local_cp_size"))
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    if tp_rank == 0:
        assert iterator is not None
        values |= {name: value.cuda(non_blocking=True) for name, value in next(iterator).items()}
    training = torch.is_grad_enabled()
    values = get_batch_on_this_tp_rank(
        values,
        has_cu_seqlens=args.dataloader_inter_document_masking,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size if training else args.eval_micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=_predicts(vp_stage),
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(vp_stage is None, vp_stage),
        is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(vp_stage is None, vp_stage),
    )
    values = get_batch_on_this_cp_rank(
        values,
        is_hybrid_cp=False,
        cp_group=parallel_state.get_context_parallel_group(),
        use_per_sequence_balancing=args.dataloader_inter_document_masking,
    )
    if values["cu_seqlens"] is None:
        return {**values, "packed": None}
    values = flatten_batch_for_packed_sequences(values)
    starts, longest = values["cu_seqlens"].squeeze(0), int(values["max_seqlen"])
    packed = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=longest, max_seqlen_kv=longest
    )
    return {**values, "packed": packed}
