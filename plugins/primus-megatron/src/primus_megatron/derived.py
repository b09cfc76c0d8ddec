"""What follows from an experiment's values. Light: neither torch nor the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from primus_core.config.experiment import Experiment

_VOCABULARIES = Path(__file__).parent / "presets" / "vocabularies.json"


def derive(experiment: Experiment) -> Mapping[str, Any] | None:
    """Values below the user's own: what the engine asks for and presets leave open."""
    get = experiment.get
    values: dict[str, Any] = {}
    if get("model_type") == "mamba" and not get("hybrid_layer_pattern") and get("num_layers"):
        values["hybrid_layer_pattern"] = "M" * get("num_layers")
    if get("max_position_embeddings") is None and get("seq_length"):
        values["max_position_embeddings"] = get("seq_length")
    tokenizer = get("tokenizer_model")
    if get("mock_data") and get("vocab_size") is None and get("padded_vocab_size") is None and tokenizer:
        size = vocabularies().get(str(tokenizer))
        if size is not None and not Path(tokenizer).exists():
            values["vocab_size"] = size
    return values or None


@cache
def vocabularies() -> Mapping[str, int]:
    """Rows of the embedding of public models, by the name of their tokenizer on the Hugging Face hub."""
    sizes: dict[str, int] = json.loads(_VOCABULARIES.read_text(encoding="utf-8"))
    return sizes


_ROCM = {
    "NVTE_CK_USES_BWD_V3": "1",
    "NVTE_ROCM_ENABLE_MXFP8": "1",
}
"""Of Transformer Engine on ROCm: the newer backward kernels, MXFP8."""


def environment(experiment: Experiment, platform: str) -> Mapping[str, str]:
    """Defaults for the workers. Fully sharded training wants more than the one queue that hides other communication."""
    sharded = experiment.get("use_torch_fsdp2") or experiment.get("use_megatron_fsdp")
    queues = {} if sharded else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return queues | (_ROCM if platform == "rocm" else {})
