"""Checkpoints of torchtitan to and from Hugging Face's format. Light: the engine is imported when it converts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from primus_core.plugins.records import load
from primus_torchtitan.train import adapter

if TYPE_CHECKING:
    from primus_core.convert.order import Order, Report


def find(path: Path) -> Path | None:
    """The checkpoint that a path is or holds: that of the last step. None for other folders."""
    for folder in (path, path / "checkpoints"):
        if _is_checkpoint(folder):
            return folder
        steps = {
            int(match[1]): each for each in folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", each.name))
        }
        complete = [step for step, each in steps.items() if _is_checkpoint(each)]
        if complete:
            return steps[max(complete)]
    return None


def _is_checkpoint(folder: Path) -> bool:
    """Megatron's have a ``metadata.json`` beside the same ``.metadata``."""
    return (folder / ".metadata").is_file() and not (folder / "metadata.json").exists()


def convert(order: Order) -> Report:
    report: Report = load(f"{adapter()}.convert:convert")(order)
    return report
