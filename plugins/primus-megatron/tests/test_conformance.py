"""What every backend keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from primus_core.testing import suites
from primus_megatron import schema


class _Megatron:
    backend = "megatron"
    entry_point = "primus_megatron.plugin"
    heavy = ("torch", "numpy", "megatron")
    experiment = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3.2_1B.yaml\n"
        "    overrides: {mock_data: true, vocab_size: 256}\n"
    )


class TestConfig(_Megatron, suites.ConfigSuite):
    def engine_schema(self) -> Mapping[Path, str]:
        made = schema.engine_schema()
        return {schema.path_of(made): schema.text_of(made)}


class TestCli(_Megatron, suites.CliSuite):
    pass


class TestLaunch(_Megatron, suites.LaunchSuite):
    pass


class TestPatches(_Megatron, suites.PatchSuite):
    pass
