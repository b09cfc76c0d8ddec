"""Hybrid recurrent-attention language models: Mamba-2, Gated DeltaNet, Kimi Delta Attention and latent attention.

Weights are named as in Flash Linear Attention. Decoding keeps a state of constant size for each recurrent mixer, and of
latent attention the compressed keys and values. Positions that the attention mask leaves out change nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_zebra_llama import ZebraLlamaConfig
from .delta_rule import delta_rule, l2norm
from .ssd import ssd

_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
_SSD_CHUNK = 64


class ZebraLlamaCache(Cache):
    """For each block a mapping from names to tensors whose first axis is the batch, and the number of tokens seen."""

    is_compileable = False
    is_croppable = False

    def __init__(self, blocks):
        super().__init__(layers=[])
        self.states = [{} for _ in range(blocks)]
        self.seen = 0

    def __len__(self):
        return len(self.states)

    def get_seq_length(self, layer_idx=0):
        return self.seen

    def get_max_length(self, layer_idx=None):
        return -1

    def reset(self):
        self.states = [{} for _ in self.states]
        self.seen = 0

    def reorder_cache(self, beam_idx):
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats):
        self._map(lambda tensor: tensor.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices):
        self._map(lambda tensor: tensor[indices])

    def _map(self, change):
        self.states = [{name: change(tensor) for name, tensor in state.items()} for state in self.states]


def _precise(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = _precise(x)
        return (F.rms_norm(wide, wide.shape[-1:], eps=self.eps) * self.weight).to(x.dtype)


class GatedNorm(RMSNorm):
    """A norm whose result is gated."""

    def __init__(self, size, eps, activation):
        super().__init__(size, eps)
        self.activation = activation

    def forward(self, x, gate):
        wide = _precise(x)
        return F.rms_norm(wide, wide.shape[-1:], eps=self.eps) * self.weight * self.activation(_precise(gate))


class ShortConvolution(nn.Conv1d):
    """Causal, each channel for itself, then SiLU: [batch, tokens, channels]."""

    def __init__(self, channels, width, bias=False):
        super().__init__(channels, channels, width, groups=channels, bias=bias)

    def forward(self, x, state, name):
        x, width = x.transpose(1, 2), self.kernel_size[0] - 1
        before = state.get(name) if state is not None else None
        x = F.pad(x, (width, 0)) if before is None else torch.cat([before, x], -1)
        if state is not None:
            state[name] = x[..., x.size(-1) - width :].clone()
        return F.silu(super().forward(x)).transpose(1, 2)


class _DeltaMixer(nn.Module):
    """What Gated DeltaNet and Kimi Delta Attention share."""

    activation = staticmethod(F.silu)

    def __init__(self, config):
        super().__init__()
        self.key, self.value, self.heads = config.key_head_dim, config.value_head_dim, config.num_value_heads
        keys, values, hidden = config.num_key_heads * self.key, self.heads * self.value, config.hidden_size
        self.q_proj, self.k_proj = _linear(hidden, keys), _linear(hidden, keys)
        self.v_proj, self.b_proj = _linear(hidden, values), _linear(hidden, self.heads)
        self.q_conv1d = ShortConvolution(keys, config.conv_size)
        self.k_conv1d = ShortConvolution(keys, config.conv_size)
        self.v_conv1d = ShortConvolution(values, config.conv_size)
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.o_norm = GatedNorm(self.value, config.norm_eps, self.activation)
        self.o_proj = _linear(values, hidden)

    def forward(self, x, mask, state, positions):
        if mask is not None:
            x = x * mask[..., None]
        q, k, v = (
            getattr(self, f"{name}_conv1d")(getattr(self, f"{name}_proj")(x), state, name).unflatten(-1, (-1, size))
            for name, size in (("q", self.key), ("k", self.key), ("v", self.value))
        )
        g, beta = self.decay(x), self.b_proj(x).sigmoid()
        if mask is not None:
            beta = beta * mask[..., None]
            g = g * mask.view(*mask.shape, *(1 for _ in range(g.dim() - 2)))
        before = state.get("recurrent") if state is not None else None
        o, after = delta_rule(l2norm(_precise(q)), l2norm(_precise(k)), v, g, beta, before)
        if state is not None:
            state["recurrent"] = after
        return self.o_proj(self.o_norm(o, self.gate(x).unflatten(-1, (-1, self.value))).to(x.dtype).flatten(-2))


class GatedDeltaNet(_DeltaMixer):
    def __init__(self, config):
        super().__init__(config)
        self.g_proj = _linear(config.hidden_size, self.heads * self.value)
        self.a_proj = _linear(config.hidden_size, self.heads)
        self.dt_bias = nn.Parameter(torch.zeros(self.heads))

    def decay(self, x):
        return -_precise(self.A_log).exp() * F.softplus(_precise(self.a_proj(x)) + _precise(self.dt_bias))

    def gate(self, x):
        return self.g_proj(x)


class KimiDeltaAttention(_DeltaMixer):
    activation = staticmethod(torch.sigmoid)

    def __init__(self, config):
        super().__init__(config)
        hidden, rank = config.hidden_size, self.value
        self.f_proj = nn.Sequential(_linear(hidden, rank), _linear(rank, self.heads * self.key))
        self.g_proj = nn.Sequential(_linear(hidden, rank), _linear(rank, self.heads * self.value, True))
        self.dt_bias = nn.Parameter(torch.zeros(self.heads * self.key))

    def decay(self, x):
        wide = (_precise(self.f_proj(x)) + _precise(self.dt_bias)).unflatten(-1, (self.heads, self.key))
        return -_precise(self.A_log).exp()[:, None] * F.softplus(wide)

    def gate(self, x):
        return self.g_proj(x)


class Mamba2(nn.Module):
    """Rows of ``in_proj``: z, x, B, C, dt."""

    def __init__(self, config):
        super().__init__()
        self.inner, self.groups = config.mamba_inner_size, config.mamba_groups
        self.head, self.size = config.mamba_head_dim, config.mamba_state_size
        self.heads, self.states = self.inner // self.head, self.groups * self.size
        channels = self.inner + 2 * self.states
        self.in_proj = _linear(config.hidden_size, self.inner + channels + self.heads)
        self.conv1d = ShortConvolution(channels, config.conv_size, bias=True)
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.zeros(self.heads)) for _ in range(3))
        self.norm = RMSNorm(self.inner, config.mamba_norm_eps)
        self.out_proj = _linear(self.inner, config.hidden_size)

    def forward(self, x, mask, state, positions):
        z, inputs, dt = self.in_proj(x).split([self.inner, self.conv1d.in_channels, self.heads], -1)
        if mask is not None:
            inputs = inputs * mask[..., None]
        inputs = _precise(self.conv1d(inputs, state, "convolution"))
        u, b, c = inputs.split([self.inner, self.states, self.states], -1)
        dt = F.softplus(_precise(dt) + _precise(self.dt_bias))
        if mask is not None:
            dt = dt * mask[..., None]
        u, b, c = (
            u.unflatten(-1, (self.heads, -1)),
            b.unflatten(-1, (self.groups, -1)),
            c.unflatten(-1, (self.groups, -1)),
        )
        before = state.get("recurrent") if state is not None else None
        y, after = ssd(u, dt, -_precise(self.A_log).exp(), b, c, min(_SSD_CHUNK, x.size(1)), before)
        if state is not None:
            state["recurrent"] = after
        y = ((y + u * _precise(self.D)[:, None]).flatten(-2).to(x.dtype) * F.silu(_precise(z))).unflatten(
            -1, (self.groups, -1)
        )
        y = F.rms_norm(y, y.shape[-1:], eps=self.norm.eps).flatten(-2) * self.norm.weight
        return self.out_proj(y.to(x.dtype))


class Rotary(nn.Module):
    """Rotary positions with YaRN (Peng et al. 2023); a factor of 1 is plain RoPE. Halves are rotated."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def frequencies(self, device):
        """[half of the channels]"""
        c, size = self.config, self.config.qk_rope_head_dim
        plain = c.rope_theta ** -(torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        if c.yarn_factor == 1:
            return plain

        def channel(turns):
            return size * math.log(c.yarn_original_context / (turns * 2 * math.pi)) / (2 * math.log(c.rope_theta))

        low, high = max(math.floor(channel(c.yarn_beta_fast)), 0), min(math.ceil(channel(c.yarn_beta_slow)), size - 1)
        steps = torch.arange(size // 2, dtype=torch.float32, device=device)
        slow = ((steps - low) / max(high - low, 1e-3)).clamp(0, 1)
        return plain / c.yarn_factor * slow + plain * (1 - slow)

    def mscale(self, weight):
        return 0.1 * weight * math.log(self.config.yarn_factor) + 1 if self.config.yarn_factor > 1 else 1.0

    def forward(self, x, positions):
        """x [batch, tokens, heads, channels], positions [batch, tokens]."""
        angles = (positions[..., None].float() * self.frequencies(x.device))[:, :, None]
        scale = self.mscale(self.config.yarn_mscale) / self.mscale(self.config.yarn_mscale_all_dim)
        wide = _precise(x)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        one, two = wide.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2). Its cache is the normalized latents and the rotated shared key."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.rank = config.num_attention_heads, config.kv_lora_rank
        self.plain, self.turned, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        hidden, eps = config.hidden_size, config.norm_eps
        queries = self.heads * (self.plain + self.turned)
        self.q_proj = nn.Sequential(
            _linear(hidden, config.q_lora_rank), RMSNorm(config.q_lora_rank, eps), _linear(config.q_lora_rank, queries)
        )
        self.kv_proj = nn.Sequential(
            _linear(hidden, self.rank),
            RMSNorm(self.rank, eps),
            _linear(self.rank, self.heads * (self.plain + self.value)),
        )
        self.k_rope = _linear(hidden, self.turned)
        self.o_proj = _linear(self.heads * self.value, hidden)
        self.rotary = Rotary(config)
        self.scale = self.rotary.mscale(config.yarn_mscale_all_dim) ** 2 / math.sqrt(self.plain + self.turned)

    def forward(self, x, mask, state, positions):
        q_plain, q_turned = self.q_proj(x).unflatten(-1, (self.heads, -1)).split([self.plain, self.turned], -1)
        q_turned = self.rotary(q_turned, positions)
        latent = self.kv_proj[1](self.kv_proj[0](x))
        turned = self.rotary(self.k_rope(x)[:, :, None], positions)[:, :, 0]
        allowed = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        if state is not None:
            if "latent" in state:
                latent = torch.cat([state["latent"], latent], 1)
                turned = torch.cat([state["turned"], turned], 1)
                allowed = torch.cat([state["allowed"], allowed], 1)
            state.update(latent=latent, turned=turned, allowed=allowed)
        tokens, known = x.size(1), latent.size(1)
        causal = torch.ones(tokens, known, dtype=torch.bool, device=x.device).tril(known - tokens)
        itself = torch.eye(known, dtype=torch.bool, device=x.device)[known - tokens :]  # padding looks at something
        seen = (causal & allowed[:, None, :] | itself)[:, None]
        up = self.kv_proj[2].weight.unflatten(0, (self.heads, -1))
        if tokens == 1:  # in the space of latents, so that keys and values are never made
            q = torch.cat([torch.einsum("bthd,hdr->bhtr", q_plain, up[:, : self.plain]), q_turned.transpose(1, 2)], -1)
            k = torch.cat([latent, turned], -1)[:, None]
            chances = (q @ k.transpose(-1, -2) * self.scale).masked_fill(~seen, float("-inf"))
            o = chances.softmax(-1, dtype=torch.float32).to(x.dtype) @ latent[:, None]
            o = torch.einsum("bhtr,hdr->bthd", o, up[:, self.plain :])
        else:
            k_plain, v = self.kv_proj[2](latent).unflatten(-1, (self.heads, -1)).split([self.plain, self.value], -1)
            q = torch.cat([q_plain, q_turned], -1).transpose(1, 2)
            k = torch.cat([k_plain, turned[:, :, None].expand(-1, -1, self.heads, -1)], -1).transpose(1, 2)
            o = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), attn_mask=seen, scale=self.scale)
            o = o.transpose(1, 2)
        return self.o_proj(o.flatten(-2))


class SwiGLU(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


_MIXERS = {"gdn": GatedDeltaNet, "kda": KimiDeltaAttention, "mamba": Mamba2, "mla": LatentAttention}


class Block(nn.Module):
    def __init__(self, config, kind):
        super().__init__()
        self.attn_norm, self.attn = RMSNorm(config.hidden_size, config.norm_eps), _MIXERS[kind](config)
        self.mlp_norm, self.mlp = RMSNorm(config.hidden_size, config.norm_eps), SwiGLU(config)

    def forward(self, x, mask, state, positions):
        x = x + self.attn(self.attn_norm(x), mask, state, positions)
        return x + self.mlp(self.mlp_norm(x))


class ZebraLlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, kind) for kind in config.mixer_types)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class ZebraLlamaForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = ZebraLlamaConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}  # noqa: RUF012
    _no_split_modules = ["Block"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["A_log", "dt_bias"]  # noqa: RUF012
    _is_stateful = True

    def __init__(self, config):
        super().__init__(config)
        self.model = ZebraLlamaModel(config)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embeddings

    def set_input_embeddings(self, value):
        self.model.embeddings = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False

    @torch.no_grad()
    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, _DeltaMixer | Mamba2):
            nn.init.uniform_(module.A_log, 1e-4 if isinstance(module, GatedDeltaNet) else 1.0, 16.0).log_()
            low, high = math.log(1e-3), math.log(1e-1)
            dt = (torch.rand_like(module.dt_bias) * (high - low) + low).exp().clamp(min=1e-4)
            module.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
            if isinstance(module, Mamba2):
                nn.init.ones_(module.D)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        return_dict=None,
        **unused,
    ):
        x = self.model.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        if cache is None and use_cache:
            cache = ZebraLlamaCache(len(self.model.layers))
        tokens, seen = x.size(1), 0 if cache is None else cache.get_seq_length()
        mask = None
        if attention_mask is not None and not bool(attention_mask.bool().all()):
            mask = attention_mask[:, -tokens:].to(x.dtype)
        if attention_mask is not None and position_ids is None:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        if position_ids is None:
            position_ids = torch.arange(seen, seen + tokens, device=x.device)[None]
        position_ids = position_ids[:, -tokens:].expand(x.size(0), -1)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, mask, None if cache is None else cache.states[index], position_ids)
        if cache is not None:
            cache.seen = seen + tokens
        kept = slice(-logits_to_keep or None, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(self.model.norm(x)[:, kept])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{_CACHE: cache})
