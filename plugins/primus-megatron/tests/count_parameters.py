"""Counts the parameters of presets as Megatron builds them, without memory for them, and prints JSON.

Only few layers are built, one for each kind of layer; the others of a kind have as many parameters.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from primus_core.config.resolve import resolve
from primus_core.patches.registry import Registry
from primus_core.plugins.manager import PluginManager
from primus_core.run.context import Place
from primus_core.run.recovery import Recovery

_EXPERIMENT = """
modules:
  pre_trainer:
    framework: megatron
    model: {model}.yaml
    overrides:
      mock_data: true
      expert_model_parallel_size: 1
      moe_grouped_gemm: false
      use_cpu_initialization: true
      perform_initialization: false
"""


def main(models: list[str]) -> None:
    plugins = PluginManager.load(environ={})
    backend = plugins.backend("megatron")
    registry = Registry.of(plugins, backend)
    _set_up(registry)
    print(json.dumps({model: _count(_run(_config(model, plugins))) for model in models}))


def _config(model: str, plugins: PluginManager) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(_EXPERIMENT.format(model=model))
        return resolve(file, "pretrain", [], plugins, environ={}).config.plain()


def _run(config: dict[str, Any]) -> Any:
    return SimpleNamespace(
        config=config,
        platform="cpu",
        recovery=Recovery(),
        stage="pretrain",
        name="count",
        folder=Path("/nonexistent"),
        attempt=Path("/nonexistent"),
        place=Place(rank=0, local_rank=0, world_size=1, local_world_size=1),
        note=lambda message: None,
        model_built=lambda model: None,
    )


def _set_up(registry: Registry) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    any_model = _run({"multi_latent_attention": True, "q_lora_rank": None})
    registry.apply("import", any_model)
    registry.apply("build", any_model)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1234)


def _count(run: Any) -> int:
    from megatron.core.process_groups_config import ProcessGroupCollection

    from primus_megatron import arguments
    from primus_megatron.model import model_config

    kinds = _layers(run.config)
    short = dict(run.config)
    if isinstance(kinds, str):
        short["hybrid_layer_pattern"] = "".join(sorted(set(kinds)))
        counted = Counter(kinds)
    else:
        short["num_layers"] = len(set(kinds))
        short["moe_layer_freq"] = sorted(set(kinds)) if run.config.get("num_experts") else 1
        counted = Counter(kinds)
    args = arguments.parse(SimpleNamespace(**vars(run) | {"config": short}))
    config = model_config(args, run)
    config.vocab_size, config.should_pad_vocab = short["vocab_size"], False
    with torch.device("meta"):
        model = config.get_builder_cls()(config).build_model(
            ProcessGroupCollection.use_mpu_process_groups(), pre_process=True, post_process=True
        )
    total = sum(parameter.numel() for parameter in model.parameters())
    for layer, kind in zip(model.decoder.layers, sorted(counted), strict=True):
        total += (counted[kind] - 1) * sum(parameter.numel() for parameter in layer.parameters())
    return total


def _layers(config: dict[str, Any]) -> str | list[int]:
    """The kind of each layer: a hybrid pattern, or 1 for experts and 0 for a dense layer."""
    if config.get("hybrid_layer_pattern"):
        return str(config["hybrid_layer_pattern"])
    from megatron.training.arguments import moe_freq_type

    count = config["num_layers"]
    if not config.get("num_experts"):
        return [0] * count
    every = config["moe_layer_freq"]
    every = moe_freq_type(every) if isinstance(every, str) else every
    return every if isinstance(every, list) else [int(index % every == 0) for index in range(count)]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
