"""What commands about presets and examples share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from primus_core.config.presets import Presets, Reader
from primus_core.config.source import scalar
from primus_core.config.tree import Leaf
from primus_core.errors import Origin, UserError
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend


def backends(plugins: PluginManager, name: str | None) -> list[Backend]:
    """The backend of this name, or all of them."""
    if name is not None:
        return [plugins.backend(name)]
    return [entry.record for entry in plugins.named("primus_backends").values() if not entry.record.tool]


def summary(file: Path) -> str:
    """The comment that a file starts with, up to its first empty or other line."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        words.append(line.strip("# "))
    return " ".join(words)


def models(presets: Presets) -> tuple[list[str], list[str]]:
    """The names of models, and of what they are built on: presets ``..._base`` and what these extend."""
    reader, here = Reader([], {}), Origin("")
    names = presets.names("models")
    for name in names:
        if name.endswith("_base"):
            reader.named(Leaf(name, here, here), "models", presets, Path())
    below = set(reader.files)
    bases = [name for name in names if any(file.path.resolve() in below for file in presets.find("models", name))]
    return [name for name in names if name not in bases], bases


def to_yaml(values: Mapping[str, Any]) -> str:
    """YAML that reads back as the same values under our rules, keys in their order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return text


def target(dest: str, name: str) -> Path:
    """The file to write: ``dest``, or ``name`` in it if it is a folder or ends like one."""
    path = Path(dest)
    return path / name if path.is_dir() or dest.endswith(os.sep) else path


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet; raises ``UserError`` where there is one or none can be."""
    blocked = next((parent for parent in path.parents if parent.is_file()), None)
    if blocked is not None:
        raise UserError(f"cannot write {path}: {blocked} is a file, not a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already and is not overwritten") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else style)


_Dumper.add_representer(str, _text)
