"""What torchtitan 0.2 can do, as far as the tests of this package or torchtitan itself show."""

from __future__ import annotations

from typing import Final

from primus_core.plugins.records import Capability

_GPU: Final = ("cuda", "rocm")

CAPABILITIES: Final = (
    Capability(feature="pretrain", support="full", note="torchtitan's own Trainer"),
    Capability(
        feature="sft", support="unsupported", note="no fine-tuning in torchtitan 0.2; the megatron backend has it"
    ),
    Capability(
        feature="lora", support="unsupported", note="no adapters in torchtitan 0.2; the megatron backend has them"
    ),
    Capability(feature="dense", support="full", note="Llama 3, Qwen 3"),
    Capability(feature="moe", support="full", note="Llama 4, Qwen 3, DeepSeek V3, GPT-OSS"),
    Capability(feature="mla", support="full", note="DeepSeek V3"),
    Capability(feature="data_parallel", support="full", note="DDP; without tensor and pipeline parallelism"),
    Capability(feature="fsdp", support="full", note="FSDP2"),
    Capability(feature="hsdp", support="full", note="replicas of shards"),
    Capability(feature="tensor_parallel", support="full", note="tensor_parallel_degree, with sequence parallelism"),
    Capability(feature="sequence_parallel", support="full", note="part of tensor parallelism"),
    Capability(
        feature="context_parallel",
        support="partial",
        note="the CPU has no attention for it, nor has GPT-OSS; 1 is what works there",
        platforms=_GPU,
        asked=({"parallelism.context_parallel_degree": "> 1"},),
    ),
    Capability(
        feature="pipeline_parallel", support="full", note="1F1B, GPipe, interleaved, zero bubble; not tied weights"
    ),
    Capability(feature="expert_parallel", support="full", note="expert_parallel_degree"),
    Capability(feature="recompute", support="full", note="activation_checkpoint.mode"),
    Capability(feature="compile", support="full", note="compile.enable"),
    Capability(feature="bf16", support="full", note="training.mixed_precision_param"),
    Capability(feature="fp8", support="partial", note="with torchao; emulated where the hardware has none"),
    Capability(feature="mxfp8", support="partial", note="with torchao, on Blackwell and MI355X; not run"),
    Capability(feature="validation", support="full", note="validation.enable"),
    Capability(feature="resume", support="full", note="the same losses to the last digit"),
    Capability(feature="reshard", support="partial", note="text cannot be dealt anew to another number of ranks"),
    Capability(feature="hf_import", support="full", note="checkpoint.initial_load_in_hf, primus convert"),
    Capability(feature="hf_export", support="full", note="checkpoint.last_save_in_hf, primus convert"),
    Capability(feature="text_data", support="full", note="training.dataset: text, tokenized while it is read"),
    Capability(feature="prepared_data", support="full", note="training.dataset: tokens"),
    Capability(feature="mock_data", support="full", note="training.mock_data: true"),
    Capability(feature="cpu", support="full", note="by patches; torch.distributed over gloo"),
    Capability(feature="multi_node", support="full", note="torchrun, through all launchers"),
)
