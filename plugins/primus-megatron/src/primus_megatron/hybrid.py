"""Layers of Megatron's hybrid models without Transformer Engine: state-space, attention, dense and expert layers."""

from __future__ import annotations

from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm as Norm
from megatron.core.transformer.transformer_layer import (
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)


def local_stack_spec(latent_norms: bool = False) -> ModuleSpec:
    """What the engine's ``hybrid_stack_spec`` is for Transformer Engine; it has none for its own layers.

    ``latent_norms``: whether latent attention has norms of its compressed queries and keys.
    """
    latent_norm = Norm if latent_norms else IdentityOp
    local = LocalSpecProvider()
    column, row, attention = local.column_parallel_linear(), local.row_parallel_linear(), local.core_attention()
    causal = {"attn_mask_type": AttnMaskType.causal}
    mamba = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=column, out_proj=row))
    self_attention = ModuleSpec(
        module=SelfAttention,
        params=causal,
        submodules=SelfAttentionSubmodules(linear_qkv=column, core_attention=attention, linear_proj=row),
    )
    latent_attention = ModuleSpec(
        module=MLASelfAttention,
        params=causal,
        submodules=MLASelfAttentionSubmodules(
            linear_q_proj=column,
            linear_q_down_proj=column,
            linear_q_up_proj=column,
            linear_kv_down_proj=column,
            linear_kv_up_proj=column,
            core_attention=attention,
            linear_proj=row,
            q_layernorm=latent_norm,
            kv_layernorm=latent_norm,
        ),
    )
    mlp = partial(MLP.as_mlp_submodule, submodules=MLPSubmodules(linear_fc1=column, linear_fc2=row))
    mtp = MultiTokenPredictionLayerSubmodules(enorm=Norm, hnorm=Norm, eh_proj=column, layer_norm=Norm)
    return ModuleSpec(
        module=HybridStack,
        submodules=HybridStackSubmodules(
            mamba_layer=ModuleSpec(
                module=MambaLayer,
                submodules=MambaLayerSubmodules(norm=Norm, mixer=mamba, mamba_bda=get_bias_dropout_add),
            ),
            attention_layer=_layer(self_attention),
            mla_layer=_layer(latent_attention),
            mlp_layer=ModuleSpec(module=MLPLayer, submodules=_feed_forward(mlp)),
            moe_layer=ModuleSpec(
                module=MoETransformerLayer,
                submodules=_feed_forward(get_moe_module_spec(use_te=False, num_experts=1, moe_grouped_gemm=False)),
            ),
            mtp_block_spec=ModuleSpec(
                module=MultiTokenPredictionBlock,
                submodules=MultiTokenPredictionBlockSubmodules(
                    layer_specs=[ModuleSpec(module=MultiTokenPredictionLayer, submodules=mtp)]
                ),
            ),
        ),
    )


def _layer(attention: ModuleSpec) -> ModuleSpec:
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=Norm, self_attention=attention, self_attn_bda=get_bias_dropout_add
        ),
    )


def _feed_forward(mlp: object) -> TransformerLayerSubmodules:
    return TransformerLayerSubmodules(pre_mlp_layernorm=Norm, mlp=mlp, mlp_bda=get_bias_dropout_add)
