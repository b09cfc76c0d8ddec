"""Recurrences in PyTorch, without the engine: exported models carry these files along."""
