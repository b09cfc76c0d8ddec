"""The folder of a model, looked at before anything heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from primus_core.errors import UserError
from primus_core.plugins.manager import PluginManager

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def check(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a model's folder. Raises ``UserError`` where something is missing."""
    if not folder.exists():
        raise UserError(f"{folder}: no such folder; a model is a folder with config.json and *.safetensors")
    file = folder / "config.json"
    if not file.is_file():
        hint = "; primus convert makes one of a checkpoint" if folder.is_dir() else ""
        raise UserError(f"{folder}: no config.json there{hint}")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type", config.get("auto_map")), str | dict):
        raise UserError(f"{file}: is no configuration of a model: it has no model_type")
    if not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise UserError(f"{folder}: no weights there, neither *.safetensors nor pytorch_model.bin")
    return config


def foreign_code(folder: Path, config: Mapping[str, Any], known: Iterable[Path]) -> list[str]:
    """The Python files that the model wants to run and that no plugin brings along in the same words."""
    if not config.get("auto_map"):
        return []
    ours = {file.name: file for file in known}
    return [
        file.name
        for file in sorted(folder.glob("*.py"))
        if file.name not in ours or file.read_bytes() != ours[file.name].read_bytes()
    ]


def trusted(folder: Path, config: Mapping[str, Any], plugins: PluginManager, trust: bool) -> bool:
    """Whether the model's code may run. Raises ``UserError`` for code of others that was not allowed."""
    converters = (entry.record.converter for entry in plugins.named("primus_backends").values())
    known = [file for converter in converters if converter for file in converter.code]
    if not trust and (files := foreign_code(folder, config, known)):
        raise UserError(
            f"{folder}: the model brings code of its own, {', '.join(files)}; read it, and allow it with "
            "--trust-remote-code"
        )
    return trust or bool(config.get("auto_map"))
