"""Bare torchtitan without primus: the side that primus is compared with.

    torchrun --nproc-per-node 1 torchtitan_plain.py JOB.json

The file holds JobConfig's values by section. The engine is as installed, with what it lacks given through its own
interfaces: made-up samples in place of a data set of the hub, and the tied Llama 3.2 1B as a flavor. On a CPU, which
it does not know, two of torch's private functions answer for one first.
"""

from __future__ import annotations

import json
import os
import sys
import types
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import torch


def stay_on_cpu() -> None:
    """Let the engine find a CPU where it looks for an accelerator."""
    import torch._utils

    device = types.SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")},
        get_device_name=lambda *args: "cpu",
        get_device_properties=lambda *args: types.SimpleNamespace(total_memory=1, name="cpu"),
        memory_stats=lambda *args: dict.fromkeys(
            ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms"), 0
        ),
        reset_peak_memory_stats=lambda *args: None,
        empty_cache=lambda: None,
    )
    device.current_device, device.device_count = lambda: 0, lambda: 1
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda *args: device


def job_config(values: dict):
    from torchtitan.config import JobConfig

    job = JobConfig()
    for section in fields(job):
        part = getattr(job, section.name)
        for name, value in values.get(section.name, {}).items():
            if hasattr(part, name) and not is_dataclass(getattr(part, name)):
                setattr(part, name, value)
    job.metrics.disable_color_printing = True
    return job


class Ramps:
    """The same made-up samples as primus: each counts up from somewhere, round and round."""

    def __init__(self, length: int, vocab_size: int, seed: int, batch: int, rank: int, ranks: int) -> None:
        self.length, self.vocab_size, self.seed = length, min(vocab_size, 256), seed
        self.batch, self.rank, self.ranks = batch, rank, ranks

    def __iter__(self):
        start = self.rank * self.batch
        while True:
            tokens = torch.stack([self.sample(number) for number in range(start, start + self.batch)])
            start += self.batch * self.ranks
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def sample(self, number: int) -> torch.Tensor:
        random = torch.Generator().manual_seed((self.seed << 40) + number)
        first = torch.randint(self.vocab_size, (1,), generator=random)
        return (first + torch.arange(self.length)) % self.vocab_size

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


def train_spec(name: str, flavor: str):
    """The engine's own, with made-up samples, without a tokenizer, and with Llama 3.2 1B."""
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs
    from torchtitan.models.llama3.model.args import RoPEScalingArgs
    from torchtitan.protocols.train_spec import get_train_spec

    class Tied(Transformer):
        def __init__(self, args) -> None:
            super().__init__(args)
            self.output.weight = self.tok_embeddings.weight

        def init_weights(self, buffer_device=None) -> None:
            self.output.weight = self.tok_embeddings.weight
            super().init_weights(buffer_device)

    spec = get_train_spec(name)
    if (name, flavor) == ("llama3", "1B"):
        args = TransformerModelArgs(
            dim=2048,
            n_layers=16,
            n_heads=32,
            n_kv_heads=8,
            ffn_dim_multiplier=1.5,
            multiple_of=1024,
            rope_theta=500000,
            vocab_size=128256,
            rope_scaling_args=RoPEScalingArgs(scaling_factor=32.0),
        )
        spec = replace(spec, model_cls=Tied, model_args={flavor: args})
    vocab_size = spec.model_args[flavor].vocab_size

    def loader(*, dp_world_size, dp_rank, tokenizer, job_config):
        job = job_config
        length, batch = job.training.seq_len + 1, job.training.local_batch_size
        return Ramps(length, vocab_size, job.debug.seed or 0, batch, dp_rank, dp_world_size)

    return replace(spec, build_dataloader_fn=loader, build_tokenizer_fn=lambda job: None)


def main() -> None:
    job_file = Path(sys.argv[1])
    if not torch.cuda.is_available():
        stay_on_cpu()

    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    init_logger()
    job = job_config(json.loads(job_file.read_text()))
    spec = train_spec(job.model.name, job.model.flavor)
    job.model.name, job.model.converters = "plain", []
    register_train_spec("plain", spec)
    job.job.dump_folder = os.environ.get("DUMP_FOLDER", "outputs")
    trainer = Trainer(job)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
