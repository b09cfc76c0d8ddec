"""Checkpoints to and from other formats: what is the same for all engines. Imports no torch."""
