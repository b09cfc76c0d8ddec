"""Models in Hugging Face's format, read tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from primus_core.errors import UserError

_INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a folder. Raises ``UserError`` where it cannot be read."""
    file = folder / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is no configuration of a model")
    return content


def write_config(folder: Path, config: dict[str, Any], dtype: str) -> None:
    """``config.json``; ``dtype`` stands under the names that old and new versions of transformers read."""
    text = json.dumps(config | {"dtype": dtype, "torch_dtype": dtype}, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


class Tensors:
    """The safetensors files of a folder; needs the package ``safetensors``, and torch for ``read``.

    Raises ``UserError`` for files that are damaged or missing.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UserError(f"{folder}: no *.safetensors there")
        if absent := sorted(_named(folder) - {file.name for file in files}):
            raise UserError(f"{folder}: {', '.join(absent)} missing, which {_INDEX} names")
        self._files: dict[str, Any] = {}
        for file in files:
            try:
                opened = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{file} is damaged: {error}") from error
            self._files |= dict.fromkeys(list(opened.keys()), opened)  # type: ignore[no-untyped-call]
        self.names = self._files.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As the format writes it: ``F32``, ``BF16``."""
        return str(self._files[name].get_slice(name).get_dtype())

    def read(self, name: str) -> Any:
        return self._files[name].get_tensor(name)


def _named(folder: Path) -> set[str]:
    """The files that the index names."""
    index = folder / _INDEX
    if not index.exists():
        return set()
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{index} is damaged: {error}") from error
