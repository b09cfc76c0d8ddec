"""Replacements in the engine, each registered in ``records`` with its reason."""
