"""How parts become one tensor, and one tensor its parts. Views where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from primus_megatron.convert.families import Link


def fuse(link: Link, parts: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    if link.how == "rows":
        return torch.cat(list(parts))
    groups = [_grouped(part, sizes["groups"]) for part in parts]
    return torch.cat(groups, dim=1).flatten(0, 1)


def split(link: Link, tensor: torch.Tensor, sizes: Mapping[str, int]) -> list[torch.Tensor]:
    rows = [shape[0] for _, shape in link.parts]
    if link.how == "rows":
        return list(tensor.split(rows))
    groups = sizes["groups"]
    parts = _grouped(tensor, groups).split([each // groups for each in rows], dim=1)
    return [part.flatten(0, 1) for part in parts]


def _grouped(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """[groups, rows of each, ...]"""
    return tensor.unflatten(0, (groups, -1))
