"""Experiments of the old layout: what they meant there, to compare with what they mean here.

A file ``old_layout.json.gz`` of a backend holds ``examples`` (module, config, model, exp_name, overrides), ``models``
and ``modules``, the values of each with dots in their keys.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primus_core.config.experiment import Experiment
from primus_core.config.tree import Tree

type Values = dict[str, Any]


def load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return content


def nested(flat: Mapping[str, Any]) -> Values:
    """Values with dots in their keys as mappings in mappings."""
    tree: Values = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[last] = value
    return tree


def merged(*layers: Values) -> Values:
    """Mappings over each other, weakest first."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            both = isinstance(value, dict) and isinstance(below, dict)
            result[key] = merged(below, value) if both else value
    return result


def written(experiment: Experiment) -> Values:
    """The resolved values without those that were derived, which nobody wrote."""
    return _written(experiment.config, f"derived by {experiment.backend}")


def _written(tree: Tree, derived: str) -> Values:
    values: Values = {}
    for key, node in tree.items.items():
        if isinstance(node, Tree):
            values[key] = _written(node, derived)
        elif node.origin.source != derived:
            values[key] = node.value
        elif node.replaced is not None:
            values[key] = node.replaced.plain() if isinstance(node.replaced, Tree) else node.replaced.value
    return values
