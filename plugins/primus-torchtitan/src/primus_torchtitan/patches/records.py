"""All patches of this backend. Imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from primus_core.plugins.records import Condition, Patch, Phase, Ref

_FINGERPRINTS = Path(__file__).parent / "fingerprints.json"
_CPU = Condition(platforms=("cpu",))
_ISSUES = "https://github.com/pytorch/torchtitan/issues"


def _patch(
    name: str,
    reason: str,
    target: Ref,
    replacement: str,
    when: Condition = Condition(),  # noqa: B008 - frozen
    phase: Phase = "build",
    aliases: tuple[Ref, ...] = (),
    upstream: str | None = None,
) -> Patch:
    return Patch(
        name=f"torchtitan.{name}",
        reason=reason,
        backend="torchtitan",
        target=target,
        replacement=f"primus_torchtitan.patches.{replacement}",
        engine_versions=">=0.2.2,<0.3",
        phase=phase,
        when=when,
        set="torchtitan.cpu" if name.startswith("cpu.") and phase == "build" else None,
        aliases=aliases,
        fingerprints=_FINGERPRINTS if target.startswith("torchtitan.") else None,
        upstream=upstream,
    )


def _cpu() -> Iterator[Patch]:
    yield _patch(
        "cpu.device-type",
        "the engine asks which accelerator there is, once, while it is imported",
        "torch._utils:_get_available_device_type",
        "cpu:device_type",
        _CPU,
        "import",
        upstream=f"{_ISSUES}/1661",
    )
    yield _patch(
        "cpu.device-module",
        "torch.cpu has no functions on memory and properties",
        "torch._utils:_get_device_module",
        "cpu:device_module",
        _CPU,
        "import",
    )
    yield _patch(
        "cpu.sum-gradients",
        "gloo cannot scale gradients while it sums them",
        "torch.distributed.fsdp:FSDPModule.set_gradient_divide_factor",
        "cpu:summed",
        _CPU,
    )
    for function in ("normal_", "trunc_normal_"):
        yield _patch(
            f"cpu.draw-whole.{function.strip('_')}",
            "DTensor draws all shards of a weight alike on a CPU: heads and words of one rank would equal another's",
            f"torch.nn.init:{function}",
            "cpu:drawn_whole",
            _CPU,
        )
    yield _patch(
        "cpu.profiler",
        "the engine asks the profiler for the activities of an accelerator that is None",
        "torch.profiler:profile",
        "cpu:present_activities",
        _CPU,
    )
    yield _patch(
        "cpu.count-tokens",
        "routers count the tokens of experts by torch.histc, which does no whole numbers on a CPU",
        "torch:histc",
        "cpu:counted",
        _CPU,
    )
    yield _patch(
        "cpu.sort-tokens",
        "tokens are sorted by experts in a Triton kernel",
        "torchtitan.models.moe.kernels:generate_permute_indices",
        "cpu:without_kernel",
        _CPU,
        aliases=("torchtitan.models.moe.utils:generate_permute_indices",),
    )
    yield _patch(
        "cpu.flex-attention",
        "flex attention has no backward on a CPU",
        "torchtitan.models.attention:FlexAttentionWrapper._compiled_flex_attn",
        "cpu:attention",
        _CPU,
    )
    yield _patch(
        "cpu.block-mask",
        "compiling the function that makes masks takes longer than all it can save here",
        "torchtitan.models.attention:_compiled_create_block_mask",
        "cpu:not_compiled",
        _CPU,
    )


def primus_torchtitan_patches() -> Iterator[Patch]:
    """In the order in which they are applied."""
    yield from _cpu()
    yield _patch(
        "gradient-scale",
        "gradients are too large by the number of tokens with pipeline stages, too small by the number of replicas",
        "torchtitan.train:Trainer.forward_backward_step",
        "engine:scaled_gradients",
        upstream=f"{_ISSUES}/2972",
    )
    for model, borrowers in (("llama3", ()), ("llama4", ("deepseek_v3", "gpt_oss", "qwen3"))):
        yield _patch(
            f"tied-weights.{model}",
            "FSDP refuses weights that belong to two groups, as those of tied embeddings do",
            f"torchtitan.models.{model}.infra.parallelize:apply_fsdp",
            "engine:tied_together",
            aliases=tuple(f"torchtitan.models.{other}.infra.parallelize:apply_fsdp" for other in borrowers),
        )
    for function in ("_permute", "_reverse_permute"):
        yield _patch(
            f"whole-heads.{function.strip('_')}",
            "weights of Hugging Face's format are reordered by heads, wrongly or not at all where shards cut heads",
            f"torchtitan.models.llama3.model.state_dict_adapter:Llama3StateDictAdapter.{function}",
            "engine:whole_heads",
        )
    yield _patch(
        "router-bias",
        "the biases of GPT-OSS's routers are never set: they start as whatever was in memory",
        "torchtitan.models.moe.moe:TokenChoiceTopKRouter.init_weights",
        "engine:with_bias",
    )
    yield _patch(
        "gpt-oss-dtype",
        "the experts of GPT-OSS return bfloat16 whatever they are given",
        "torchtitan.models.gpt_oss.model.moe:_run_experts_grouped_mm",
        "engine:same_dtype",
    )
    yield _patch(
        "peak-flops",
        "the engine takes an A100's peak for devices that it does not know, and rounded ones for AMD's",
        "torchtitan.tools.utils:get_peak_flops",
        "engine:peak_flops",
        Condition(platforms=("cpu", "rocm")),
    )
    yield _patch(
        "validation-data",
        "validation takes its data from the engine's own table of datasets",
        "torchtitan.components.validate:build_text_validation_dataloader",
        "engine:validation_data",
    )
