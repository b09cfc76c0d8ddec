"""Checkpoints of Megatron to and from Hugging Face's format, without building the model."""
