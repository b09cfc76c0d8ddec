"""What Megatron can do, as far as the tests of this package or Megatron itself show."""

from __future__ import annotations

from typing import Final

from primus_core.plugins.records import Capability

_TE: Final = "transformer-engine"
_INSTALL_TE: Final = "pip install primus-megatron[te]"
_GPU: Final = ("cuda", "rocm")

CAPABILITIES: Final = (
    Capability(feature="pretrain", support="full", note="Megatron's own pretrain()"),
    Capability(feature="sft", support="full", note="conversations and instructions in JSON lines: train posttrain"),
    Capability(feature="lora", support="full", note="adapters on the linear layers, merged on export"),
    Capability(feature="packing", support="full", note="enable_packed_sequences, for fine-tuning"),
    Capability(feature="dense", support="full", note="grouped queries, RoPE, SwiGLU, RMSNorm, sliding windows"),
    Capability(feature="moe", support="full", note="all of Megatron's routers, with shared experts"),
    Capability(feature="mla", support="full", note="with and without a low rank for queries, YaRN"),
    Capability(feature="mtp", support="full", note="mtp_num_layers"),
    Capability(feature="hybrid", support="full", note="Mamba-2 and attention by hybrid_layer_pattern"),
    Capability(feature="data_parallel", support="full", note="with the distributed optimizer where asked"),
    Capability(feature="fsdp", support="partial", note="use_megatron_fsdp is Megatron's own and has not been run"),
    Capability(feature="tensor_parallel", support="full", note="tensor_model_parallel_size"),
    Capability(feature="sequence_parallel", support="full", note="sequence_parallel"),
    Capability(
        feature="context_parallel",
        support="partial",
        note=f"needs Transformer Engine ({_INSTALL_TE}); without it, 1 is what works",
        needs=_TE,
        asked=({"context_parallel_size": "> 1"},),
    ),
    Capability(feature="pipeline_parallel", support="full", note="1F1B and interleaved stages, free layouts"),
    Capability(feature="expert_parallel", support="full", note="resumes with the same expert parallel size only"),
    Capability(feature="recompute", support="full", note="full and selective"),
    Capability(feature="bf16", support="full", note="bf16: true"),
    Capability(
        feature="fp8",
        support="partial",
        note=f"needs Transformer Engine ({_INSTALL_TE}); null trains in BF16",
        needs=_TE,
        asked=({"fp8": "any"},),
    ),
    Capability(
        feature="fp4",
        support="partial",
        note=f"needs Transformer Engine ({_INSTALL_TE}); null trains in BF16",
        needs=_TE,
        asked=({"fp4": "any"},),
    ),
    Capability(
        feature="mxfp4",
        title="MXFP4",
        support="unsupported",
        note="MXFP4 is not part of megatron-core; nvfp4 is, on NVIDIA Blackwell",
        asked=({"fp4_recipe": "mxfp4", "fp4": "any"},),
    ),
    Capability(feature="validation", support="full", note="eval_interval, eval_iters"),
    Capability(feature="resume", support="full", note="the same losses to the last digit"),
    Capability(feature="reshard", support="full", note="tensor, pipeline and data parallel sizes may change"),
    Capability(feature="hf_import", support="partial", note="primus convert: Llama, Qwen 2 and 3, Mixtral, DeepSeek"),
    Capability(feature="hf_export", support="partial", note="primus convert: Llama, Qwen 2 and 3, Mixtral, DeepSeek"),
    Capability(feature="text_data", support="partial", note="after primus data prepare"),
    Capability(feature="prepared_data", support="full", note="train_data_path, valid_data_path, data_path"),
    Capability(feature="mock_data", support="full", note="mock_data: true"),
    Capability(feature="cpu", support="full", note="by patches; torch.distributed over gloo"),
    Capability(feature="multi_node", support="full", note="torchrun, through all launchers"),
    Capability(
        feature="reinforcement_learning",
        title="Reinforcement learning",
        support="unsupported",
        note="reinforcement learning is not part of the megatron-core wheel",
        asked=({"perform_rl_step": True},),
    ),
)
