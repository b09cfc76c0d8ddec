"""What every backend keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from primus_core.testing import suites
from primus_torchtitan import schema


class _Titan:
    backend = "torchtitan"
    entry_point = "primus_torchtitan.plugin"
    heavy = ("torch", "numpy", "torchtitan")
    experiment = "modules: {pre_trainer: {framework: torchtitan, model: llama3_debug.yaml}}\n"


class TestConfig(_Titan, suites.ConfigSuite):
    def engine_schema(self) -> Mapping[Path, str]:
        return schema.paths()


class TestCli(_Titan, suites.CliSuite):
    pass


class TestLaunch(_Titan, suites.LaunchSuite):
    pass


class TestPatches(_Titan, suites.PatchSuite):
    pass
