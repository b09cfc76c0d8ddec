"""Fine-tuning with Megatron: conversations to packed samples, and LoRA adapters."""
