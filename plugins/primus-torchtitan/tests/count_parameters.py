"""Prints how many parameters presets have, as JSON: ``python count_parameters.py NAME ...``. Takes no memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torchtitan.config import JobConfig
from torchtitan.protocols.train_spec import get_train_spec

from primus_core.config.presets import Presets, Reader
from primus_core.config.tree import Leaf
from primus_core.errors import Origin
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import load


def count(name: str, plugins: PluginManager, presets: Presets) -> int:
    here = Origin("here")
    model = Reader([], {}).named(Leaf(name, here, here), "models", presets, Path()).plain()["model"]
    spec = get_train_spec(model["name"])
    registered = plugins.models().get(("torchtitan", name))
    if registered is not None and registered.record.builder is not None:
        spec = load(registered.record.builder)(SimpleNamespace(model=name), spec=spec)
    args = spec.model_args[model["flavor"]]
    args.update_from_config(JobConfig())
    with torch.device("meta"):
        built = spec.model_cls(args)
    return sum(parameter.numel() for parameter in built.parameters())


if __name__ == "__main__":
    found = PluginManager.load(environ={})
    of_backend = Presets.of(found.backend("torchtitan"), found)
    print(json.dumps({name: count(name, found, of_backend) for name in sys.argv[1:]}))
