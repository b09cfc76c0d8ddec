"""Replacements of things in the engine; ``records`` lists them, each with its reason."""
