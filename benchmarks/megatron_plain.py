"""Plain ``megatron.training`` without primus: the side that primus is compared with.

Takes Megatron's own command line. On a GPU it changes one thing in the engine (the wheel has no Makefile for
``compile_helpers``); on a CPU, where the engine alone cannot run, also what a dense GPT needs to get through.
"""

from __future__ import annotations

import contextlib
import functools

import torch


def stay_on_cpu() -> None:
    """Let CUDA calls of the engine act on the CPU; enough for a dense GPT with Adam, no more."""

    def to_cpu(kwargs: dict) -> dict:
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu" if torch.device(kwargs["device"]).type == "cuda" else kwargs["device"]
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return kwargs

    def on_cpu(function):
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **to_cpu(kwargs)))

    from torch.utils._device import _device_constructors

    _device_constructors()
    for name in ("tensor", "empty", "zeros", "ones", "full", "arange", "zeros_like", "empty_like", "ones_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.Tensor.to = on_cpu(torch.Tensor.to)

    plain_type = torch.Tensor.type
    torch.Tensor.type = lambda self, *dtype: (
        plain_type(self, *dtype) if dtype else plain_type(self).replace("torch.", "torch.cuda.")
    )

    cuda = torch.cuda
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats", "_lazy_init"):
        setattr(cuda, name, lambda *args, _name=name, **kwargs: None)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.is_current_stream_capturing = lambda: False
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *args, _name=name, **kwargs: 0)
    cuda.memory_stats = lambda *args: {"allocation.all.current": 0}
    cuda.get_device_properties = lambda *args: type("Cpu", (), {"major": 0, "minor": 0, "total_memory": 1})
    cuda.get_rng_state = lambda *args: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda.Event = cuda.Stream = type("Null", (), {"__getattr__": lambda *_: lambda *args, **kwargs: 0})
    cuda.current_stream = lambda *args: cuda.Stream()
    cuda.stream = contextlib.nullcontext
    for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor", "LongTensor", "IntTensor", "DoubleTensor"):
        dtype = getattr(torch, name).dtype
        new = functools.partial(lambda cls, data, dtype: torch.tensor(data, dtype=dtype), dtype=dtype)
        setattr(cuda, name, type(name, (), {"__new__": lambda cls, data, new=new: new(cls, data)}))

    import megatron.core.parallel_state as parallel_state
    import megatron.core.tensor_parallel.random as random
    import megatron.training.training as training

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    parallel_state.get_nccl_options = lambda *args, **kwargs: None
    training.initialize_megatron = functools.partial(training.initialize_megatron, allow_no_cuda=True)
    training.set_jit_fusion_options = lambda *args, **kwargs: None


def datasets(samples, vp_stage=None):
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
    from megatron.core.datasets.utils import get_blend_from_list
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron.training import get_args

    args = get_args()
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=get_blend_from_list(args.data_path),
        split=args.split,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        path_to_cache=args.data_cache_path,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
    )
    kind = MockGPTDataset if args.mock_data else GPTDataset
    return BlendedMegatronDatasetBuilder(kind, samples, lambda: True, config).build()


datasets.is_distributed = True


def forward_step(batches, model):
    batch = {name: value.cuda(non_blocking=True) for name, value in next(batches).items()}
    losses = model(batch["tokens"], batch["position_ids"], batch.get("attention_mask"), labels=batch["labels"])
    mask = batch["loss_mask"].view(-1).float()

    def mean(output):
        total = (output.view(-1).float() * mask).sum()
        count = mask.sum().to(torch.int)
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return losses, mean


def main() -> None:
    import megatron.core.datasets.utils as dataset_utils

    dataset_utils.compile_helpers = lambda: None
    if not torch.cuda.is_available():
        stay_on_cpu()

    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    args = parse_and_validate_args()
    config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
    pretrain(config, datasets, ModelType.encoder_or_decoder, forward_step)


if __name__ == "__main__":
    main()
