"""The schema, from the engine's own settings: ``python -m primus_nano_gpt.schema`` writes it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from nano_gpt.settings import Settings

VERSION = "0.1.0"
FILE = Path(__file__).parent / "schemas" / f"primus-nano-gpt-{VERSION}.json"


def text() -> str:
    """The file's contents."""
    keys = {}
    for field in fields(Settings):
        kind = str(field.type)
        keys[field.name] = {"type": kind.removesuffix(" | None"), "default": field.default}
        if kind.endswith("| None"):
            keys[field.name]["nullable"] = True
    return json.dumps({"engine": "primus-nano-gpt", "version": VERSION, "keys": keys}, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
