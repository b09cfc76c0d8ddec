"""Text to tokens: sources, tokenizers, and Megatron's ``.bin``/``.idx`` files."""
