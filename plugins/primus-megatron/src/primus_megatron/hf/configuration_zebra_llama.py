"""Configuration of hybrid recurrent-attention models."""

from transformers import PretrainedConfig

MIXERS = ("kda", "gdn", "mamba", "mla")


class ZebraLlamaConfig(PretrainedConfig):
    """Every block is a mixer and a SwiGLU layer; ``mixer_types`` names the mixer of each, one of ``MIXERS``."""

    model_type = "zebra_llama"

    def __init__(
        self,
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        mixer_types=("gdn",) * 16,
        norm_eps=1e-6,
        conv_size=4,
        num_key_heads=8,
        num_value_heads=16,
        key_head_dim=64,
        value_head_dim=64,
        num_attention_heads=32,
        q_lora_rank=1344,
        kv_lora_rank=128,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=64,
        rope_theta=500000.0,
        yarn_factor=1.0,
        yarn_original_context=4096,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
        yarn_mscale=1.0,
        yarn_mscale_all_dim=1.0,
        mamba_inner_size=2048,
        mamba_head_dim=64,
        mamba_state_size=64,
        mamba_groups=8,
        mamba_norm_eps=1e-5,
        initializer_range=0.02,
        max_position_embeddings=8192,
        use_cache=True,
        tie_word_embeddings=True,
        **given,
    ):
        own = {name: value for name, value in locals().items() if name not in ("self", "given", "__class__")}
        if unknown := sorted(set(mixer_types) - set(MIXERS)):
            raise ValueError(f"mixer_types: {', '.join(unknown)}; there are {', '.join(MIXERS)}")
        own["mixer_types"] = list(mixer_types)
        given.pop("num_hidden_layers", None)
        tied = own.pop("tie_word_embeddings")
        for name, value in own.items():
            setattr(self, name, value)
        self.num_hidden_layers = len(self.mixer_types)
        super().__init__(tie_word_embeddings=tied, **given)
