"""What the engine's own model makes of tokens, for ``primus verify --against``. Runs in a process of its own."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from primus_core.convert.order import Forward
from primus_core.patches.registry import Registry
from primus_core.platforms.detect import current
from primus_core.plugins.manager import PluginManager
from primus_core.run.context import Place
from primus_core.run.recovery import Recovery
from primus_megatron.convert import hybrid, settings
from primus_megatron.convert.convert import arguments_of
from primus_megatron.convert.dist import Checkpoint

_TRACKER = "latest_checkpointed_iteration.txt"
_SMALLEST: Mapping[str, Any] = {
    "mock_data": True,
    "split": "90,5,5",
    "num_workers": 0,
    "finetune": True,
    "train_iters": 1,
    "micro_batch_size": 1,
    "global_batch_size": 1,
    "lr": 1e-5,
    "eval_iters": 0,
    "eval_interval": 1,
    "moe_token_dispatcher_type": "alltoall",
}
"""As little of a run as the engine needs to build a model and load a checkpoint into it."""


class _Enough(Exception):
    """The logits are there, and training would begin."""


class Look:
    """A run that ends before its first step, with the logits of what was loaded."""

    name = "verify"
    stage = "pretrain"
    model = None
    metrics: Mapping[str, Any] = {}
    secret_keys: frozenset[str] = frozenset()
    stop_requested = False
    place = Place(rank=0, local_rank=0, world_size=1, local_world_size=1)
    rank = 0
    is_reporter = True

    def __init__(self, config: Mapping[str, Any], folder: Path, tokens: torch.Tensor) -> None:
        plugins = PluginManager.load()
        self.backend = plugins.backend("megatron")
        self._patches = Registry.of(plugins, self.backend)
        platform, self.devices = current(plugins)
        self.platform = platform.name
        self.recovery = Recovery()
        self.config, self.folder, self.attempt = config, folder, folder
        self._tokens, self._chunk = tokens, None
        self.logits: torch.Tensor | None = None

    def apply_patches(self, phase: Any) -> None:
        self._patches.apply(phase, self)

    def model_built(self, model: Any) -> None:
        self._chunk = model

    def expect(self, steps: int, start: int = 0) -> None:
        """Called when everything is loaded."""
        model: Any = self._chunk
        device = next(model.parameters()).device
        tokens = self._tokens.to(device)
        positions = torch.arange(tokens.size(1), device=device).expand_as(tokens)
        model.eval()
        with torch.no_grad():
            self.logits = model(tokens, positions, None).float().cpu()
        raise _Enough

    def builder(self, model: str) -> Callable[..., Any] | None:
        return None

    def enter(self, phase: str, step: int | None = None) -> None: ...
    def note(self, message: str) -> None: ...
    def report_step(self, step: int, metrics: Mapping[str, Any]) -> None: ...
    def report_eval(self, step: int, metrics: Mapping[str, Any], split: str = "valid") -> None: ...
    def checkpoint_saved(self, step: int, path: Path) -> None: ...


def logits(text: str) -> str:
    """Raises ``UserError`` for a checkpoint that cannot be read or does not say which model it is."""
    order = Forward.read(text)
    tokens = torch.tensor(order.tokens)
    arguments = arguments_of(Checkpoint(order.source), order.source)
    with tempfile.TemporaryDirectory(prefix="primus-logits-") as name:
        folder = Path(name)
        config = {**_architecture(arguments), **_SMALLEST, "seq_length": tokens.size(1), "load": str(folder)}
        config["max_position_embeddings"] = max(config.get("max_position_embeddings") or 0, tokens.size(1))
        _offer(order.source, folder)
        _alone()
        run = Look(config, folder, tokens)
        run.apply_patches("import")
        from primus_megatron.train import train

        with suppress(_Enough):
            train(run)  # type: ignore[arg-type]
        assert run.logits is not None
        save_file({"logits": run.logits.contiguous()}, order.output)
    torch.distributed.destroy_process_group()
    return ""


def _architecture(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the checkpoint's own arguments, for all that describe a model."""
    if arguments.get("hybrid_layer_pattern"):
        return {key: arguments[key] for key in hybrid.ARGUMENTS if arguments.get(key) is not None}
    _, config = settings.to_hf(arguments)
    _, known = settings.from_hf(config)
    return known | {key: arguments[key] for key in known if arguments.get(key) is not None}


def _offer(source: Path, folder: Path) -> None:
    """Make ``folder`` one that the engine loads ``source`` from, whatever its name."""
    released = source.name == "release"
    (folder / ("release" if released else "iter_0000001")).symlink_to(source, target_is_directory=True)
    (folder / _TRACKER).write_text("release" if released else "1")


def _alone() -> None:
    """One rank, as torchrun would have it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
