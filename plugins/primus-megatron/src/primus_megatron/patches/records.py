"""All patches of this backend. Imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from primus_core.plugins.records import Condition, Patch, Phase, Ref

_FINGERPRINTS = Path(__file__).parent / "fingerprints.json"
_CPU = Condition(platforms=("cpu",))
_NO_TE = Condition(missing=("transformer_engine",))
_PYTORCH_ATTENTION = Condition(
    missing=("transformer_engine",), config={"attention_backend": frozenset({None, "auto", "flash", "fused"})}
)
_NO_FUSED_ADAM = Condition(missing=("transformer_engine", "apex"))
_LATENT = Condition(config={"multi_latent_attention": True, "q_lora_rank": None})
_NO_MAMBA = Condition(missing=("mamba_ssm",))

_CUDA_TENSORS = ("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "IntTensor", "LongTensor", "ByteTensor")
_FACTORIES = (
    *("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "scalar_tensor", "tensor"),
    *("tril_indices", "triu_indices", "zeros", "zeros_like"),
    *(f"Tensor.{name}" for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")),
)

_TORCH_ON_CPU: dict[str, Sequence[str]] = {
    "nothing": (
        *("cuda:empty_cache", "cuda:ipc_collect", "cuda:reset_peak_memory_stats", "cuda:set_device"),
        *("cuda:set_stream", "cuda:synchronize", "cuda.nvtx:mark", "cuda.nvtx:range_pop", "cuda.nvtx:range_push"),
        "Tensor.record_stream",
    ),
    "current_device": ("cuda:current_device",),
    "device_count": ("cuda:device_count",),
    "device_properties": ("cuda:get_device_properties",),
    "device_capability": ("cuda:get_device_capability",),
    "device_name": ("cuda:get_device_name",),
    "false": ("cuda:is_current_stream_capturing",),
    "memory": ("cuda:memory_allocated", "cuda:memory_reserved"),
    "highest_memory": ("cuda:max_memory_allocated", "cuda:max_memory_reserved"),
    "memory_info": ("cuda:mem_get_info",),
    "memory_stats": ("cuda:memory_stats",),
    "stream_type": ("cuda:Stream",),
    "event_type": ("cuda:Event",),
    "current_stream": ("cuda:current_stream", "cuda:default_stream"),
    "on_stream": ("cuda:stream",),
    "get_rng_state": ("cuda:get_rng_state",),
    "set_rng_state": ("cuda:set_rng_state",),
    "manual_seed": ("cuda:manual_seed", "cuda:manual_seed_all"),
    "tensor_type": tuple(f"cuda:{name}" for name in _CUDA_TENSORS),
    "on_cpu": _FACTORIES,
    "to": ("Tensor.to",),
    "itself": ("Tensor.cuda", "Tensor.pin_memory", "nn:Module.cuda"),
    "not_compiled": ("compile",),
}

_ENGINE_ON_CPU: tuple[tuple[str, str, Ref, tuple[Ref, ...], str], ...] = (
    (
        "initialize",
        "initialize_without_cuda",
        "megatron.training.training:initialize_megatron",
        (),
        "the engine starts without a GPU only by an argument that its pretrain() does not hand on",
    ),
    (
        "warm-up",
        "nothing",
        "megatron.training.training:set_jit_fusion_options",
        (),
        "warms up kernels that are not compiled here",
    ),
    (
        "get-rng-state",
        "get_rng_state",
        "megatron.core.tensor_parallel.random:_get_cuda_rng_state",
        (),
        "reads the state of CUDA's generator past torch.cuda",
    ),
    (
        "set-rng-state",
        "set_rng_state",
        "megatron.core.tensor_parallel.random:_set_cuda_rng_state",
        (),
        "sets the state of CUDA's generator past torch.cuda",
    ),
    (
        "fork-rng",
        "fork_quietly",
        "megatron.core.tensor_parallel.random:CudaRNGStatesTracker.fork",
        (),
        "warns at each use that the CPU's generator changed, which is the one that it forks",
    ),
    (
        "data-iterators",
        "keep_rng_state",
        "megatron.training.training:build_train_valid_test_data_iterators",
        (),
        "draws seeds for its workers from the generator that dropout uses here, so that a resumed run drops others",
    ),
    ("groups", "nothing", "megatron.core.parallel_state:get_nccl_options", (), "gloo takes no options of NCCL"),
    (
        "optimizer",
        "with_cuda_type_names",
        "megatron.training.training:get_megatron_optimizer",
        (),
        "sorts parameters by the type names of CUDA tensors",
    ),
    (
        "clip-gradients",
        "with_cuda_type_names",
        "megatron.core.optimizer.clip_grads:clip_grad_by_total_norm_fp32",
        (
            "megatron.core.optimizer.optimizer:clip_grad_by_total_norm_fp32",
            "megatron.core.models.mimo.optimizer:clip_grad_by_total_norm_fp32",
        ),
        "asserts the type name of CUDA tensors",
    ),
    (
        "expert-sizes",
        "to_cpu",
        "megatron.core.transformer.moe.moe_utils:maybe_move_tensor_to_cpu",
        ("megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu",),
        "makes the sizes of an all-to-all plain numbers only if they were on a GPU",
    ),
    (
        "fsdp-reduce",
        "scale_then_sum",
        "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer:gradient_reduce_preprocessing",
        (),
        "gloo cannot multiply before it sums",
    ),
)

_REPORTING: tuple[tuple[Ref, str], ...] = (
    ("megatron.training.training:train", "train"),
    ("megatron.training.training:train_step", "train_step"),
    ("megatron.training.training:training_log", "training_log"),
    ("megatron.training.training:evaluate_and_print_results", "evaluate_and_print_results"),
    ("megatron.training.training:evaluate", "evaluate"),
    ("megatron.training.training:save_checkpoint", "save_checkpoint"),
    ("megatron.training.training:maybe_finalize_async_save", "finalize_async_save"),
    ("megatron.training.training:load_checkpoint", "load_checkpoint"),
    ("megatron.core.transformer.moe.moe_logging:MoEMetricsTracker.report", "expert_losses"),
    (
        "megatron.core.transformer.multi_token_prediction:MTPLossLoggingHelper.track_mtp_metrics",
        "later_token_losses",
    ),
)


def _patch(
    name: str,
    reason: str,
    target: Ref,
    replacement: str,
    when: Condition = Condition(),  # noqa: B008 - frozen
    phase: Phase = "build",
    set: str | None = None,
    aliases: tuple[Ref, ...] = (),
    required: bool = True,
) -> Patch:
    ours = target.startswith("megatron.")
    return Patch(
        name=f"megatron.{name}",
        reason=reason,
        backend="megatron",
        target=target,
        replacement=f"primus_megatron.patches.{replacement}",
        engine_versions=">=0.19.2,<0.20",
        phase=phase,
        when=when,
        set=set,
        aliases=aliases,
        required=required,
        fingerprints=_FINGERPRINTS if ours else None,
    )


def _cpu() -> Iterator[Patch]:
    for function, places in _TORCH_ON_CPU.items():
        for place in places:
            module, _, path = place.rpartition(":")
            target = f"torch.{module}:{path}" if module else f"torch:{path}"
            yield _patch(
                f"cpu.{target.replace(':', '.')}",
                "there is no GPU: the CPU takes its place",
                target,
                f"cpu:{function}",
                _CPU,
                phase="import",
                set="megatron.cpu.torch",
            )
    for name, function, target, aliases, reason in _ENGINE_ON_CPU:
        yield _patch(f"cpu.{name}", reason, target, f"cpu:{function}", _CPU, set="megatron.cpu", aliases=aliases)


def _without_transformer_engine() -> Iterator[Patch]:
    yield _patch(
        "sdp-attention",
        "the engine's own attention keeps all scores in memory, repeats keys and values, and cannot do latent "
        "attention or packed sequences",
        "megatron.core.models.backends:LocalSpecProvider.core_attention",
        "attention:core_attention",
        _PYTORCH_ATTENTION,
    )
    yield _patch(
        "torch-norm",
        "the engine's wrapper of PyTorch's norms refuses sequence parallelism and gammas centred at zero",
        "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
        "norm:norm_of_ours",
        _NO_TE,
    )
    reason = "the distributed optimizer's checkpoints need an Adam that keeps its step in the parameter group"
    optimizers = "megatron.core.optimizer"
    for name, target, replacement in (
        ("adam", f"{optimizers}:Adam", "fused_adam"),
        ("adam-is-fused", f"{optimizers}:USING_PYTORCH_OPTIMIZER", "false"),
        ("distributed-adam", f"{optimizers}.distrib_optimizer:Adam", "fused_adam"),
        ("distributed-adam-is-fused", f"{optimizers}.distrib_optimizer:HAVE_APEX_OR_TE", "true"),
        ("distributed-adam-is-apex-like", f"{optimizers}.distrib_optimizer:USING_APEX_OPTIMIZER", "true"),
    ):
        yield _patch(name, reason, target, f"optimizer:{replacement}", _NO_FUSED_ADAM, set="megatron.fused-adam")


def _without_mamba_ssm() -> Iterator[Patch]:
    reason = "the engine's Mamba layers need kernels of mamba-ssm; the same in PyTorch takes their place"
    for name, replacement in (
        ("HAVE_MAMBA_SSM", "true"),
        ("mamba_chunk_scan_combined", "scan"),
        ("mamba_split_conv1d_scan_combined", "scan_with_convolution"),
        ("ExtendedRMSNorm", "gated_norm"),
    ):
        target = f"megatron.core.ssm.mamba_mixer:{name}"
        yield _patch(f"mamba.{name}", reason, target, f"mamba:{replacement}", _NO_MAMBA, set="megatron.mamba")
    yield _patch(
        "mamba.final-norm",
        "the stack of hybrid layers ends in a norm of Transformer Engine",
        "megatron.core.models.hybrid.hybrid_block:TENorm",
        "norm:torch_norm",
        _NO_TE,
    )


def _latent_attention() -> Iterator[Patch]:
    resolver = "megatron.core.transformer.mla_qk_norm_config:QKNormConfigResolver"
    for name, method, replacement in (
        ("unused-query-norm", "_raise_unused_q_norm", "accept_unused_query_norm"),
        ("no-query-norm", "_resolve_mla_qk_layernorm", "without_query_norm"),
    ):
        yield _patch(
            f"latent.{name}",
            "the engine cannot build latent attention that norms its keys and has no low rank for its queries",
            f"{resolver}.{method}",
            f"latent:{replacement}",
            _LATENT,
            set="megatron.latent",
        )


def _reporting() -> Iterator[Patch]:
    for target, replacement in _REPORTING:
        yield _patch(
            f"report.{replacement.replace('_', '-')}",
            "tells primus what the training loop does; computes nothing else",
            target,
            f"reporting:{replacement}",
            phase="train",
            set="megatron.report",
        )


def primus_megatron_patches() -> Iterator[Patch]:
    """In the order in which they are applied."""
    yield from _cpu()
    yield _patch(
        "compiled-helpers",
        "the wheel has the helpers of the data index compiled, and no Makefile to compile them again",
        "megatron.core.datasets.utils:compile_helpers",
        "wheel:compiled_helpers",
    )
    for module in ("gpt_dataset", "blended_dataset"):
        patch = _patch(
            f"whole-index.{module}",
            "an index file that was cut off by the end of a run is taken for a whole one by all later runs",
            f"megatron.core.datasets.{module}:numpy",
            "index:atomic",
        )
        yield patch._replace(fingerprints=None)
    yield from _without_transformer_engine()
    yield from _without_mamba_ssm()
    yield from _latent_attention()
    yield _patch(
        "load-optimizer-without-gradients",
        "with fp32 parameters the distributed optimizer copies a checkpoint into parameters that require gradients",
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._set_main_param_and_optimizer_states",
        "optimizer:without_gradients",
    )
    yield from _reporting()
    for name, reason in (
        ("train_step", "a bad loss stops the run, or its step is left out, before the update"),
        ("checkpoint_and_decide_exit", "stops where the engine does, on signals that came to any rank"),
    ):
        yield _patch(
            f"survive.{name.replace('_', '-')}",
            reason,
            f"megatron.training.training:{name}",
            f"survive:{name}",
            phase="train",
            set="megatron.survive",
        )
