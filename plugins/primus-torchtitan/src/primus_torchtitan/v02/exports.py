"""What makes a folder of weights a model of Hugging Face's libraries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primus_core.errors import UserError
from primus_torchtitan.v02.configs import hf_config

_BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def complete(folder: Path, model: str, args: Any, weights: Mapping[str, Any], assets: Path) -> str | None:
    """Put the configuration and the tokenizer of ``assets`` beside the weights, or a configuration by the model's own
    sizes, so that they are of the model that was trained. Returns why there is none.
    """
    for name in _BESIDE:
        if (assets / name).is_file():
            shutil.copy(assets / name, folder)
    try:
        config = hf_config(model, args, weights)
    except UserError as error:
        return None if (folder / "config.json").exists() else str(error)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return None
