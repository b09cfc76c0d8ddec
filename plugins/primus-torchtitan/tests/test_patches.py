"""Patches fit the engine that is installed."""

from __future__ import annotations

from primus_core.patches.registry import Registry
from primus_core.plugins.manager import PluginManager


def test_all_patches_fit() -> None:
    plugins = PluginManager.load()
    registry = Registry.of(plugins, plugins.backend("torchtitan"))
    decisions = registry.check()
    assert len(decisions) > 10
    assert [str(decision) for decision in decisions if decision.status != "pending"] == []
    assert all(decision.patch.reason for decision in decisions)
