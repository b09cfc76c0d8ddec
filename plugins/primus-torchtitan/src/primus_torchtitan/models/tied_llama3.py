"""Llama 3 with one matrix for embedding and output, as Llama 3.2 has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama3.model.args import RoPEScalingArgs
from torchtitan.models.llama3.model.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.train_spec import TrainSpec

from primus_core.run.context import Run
from primus_torchtitan.flavors import own

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def build(run: Run, *, spec: TrainSpec) -> TrainSpec:
    """The engine's Llama 3 with the flavor of ``run.model``; other flavors are no longer there."""
    added = own()[run.model]
    rope = {name.partition(".")[2]: value for name, value in added["fields"].items() if "." in name}
    fields = {name: value for name, value in added["fields"].items() if "." not in name}
    return replace(
        spec,
        model_cls=TiedTransformer,
        model_args={added["flavor"]: TiedModelArgs(**fields, rope_scaling_args=RoPEScalingArgs(**rope))},
        state_dict_adapter=TiedStateDictAdapter,
    )


@dataclass
class TiedModelArgs(TransformerModelArgs):
    enable_weight_tying: bool = True


class TiedTransformer(Transformer):
    """The output layer's weight is that of the embedding, of shape (vocabulary, dim)."""

    def __init__(self, model_args: TiedModelArgs) -> None:
        super().__init__(model_args)
        self._tie()

    def init_weights(self, buffer_device: torch.device | None = None) -> None:
        self._tie()  # storage was made for each module since
        super().init_weights(buffer_device)

    def _tie(self) -> None:
        if self.model_args.enable_weight_tying:
            self.output.weight = self.tok_embeddings.weight


class TiedStateDictAdapter(Llama3StateDictAdapter):
    """Files of tied models hold the matrix once, under the embedding's name."""

    model_args: TiedModelArgs

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        weights = super().to_hf(state_dict)
        if self.model_args.enable_weight_tying:
            weights.pop(_OUTPUT, None)
        return weights

    def from_hf(self, hf_state_dict: Mapping[str, Any]) -> dict[str, Any]:
        weights = dict(hf_state_dict)
        if self.model_args.enable_weight_tying and _EMBEDDING in weights:
            weights.setdefault(_OUTPUT, weights[_EMBEDDING])
        return super().from_hf(weights)
