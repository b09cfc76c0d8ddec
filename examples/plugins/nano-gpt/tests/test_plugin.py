"""What every backend must keep to; what yours does besides belongs beside it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from primus_core.testing import suites
from primus_nano_gpt import schema

EXPERIMENT = """\
modules:
  pre_trainer:
    framework: nano-gpt
    model: tiny.yaml
"""


class TestConfig(suites.ConfigSuite):
    backend = "nano-gpt"
    entry_point = "primus_nano_gpt.plugin"
    heavy = ("torch", "numpy", "nano_gpt")

    def engine_schema(self) -> Mapping[Path, str]:
        return {schema.FILE: schema.text()}


class TestCli(suites.CliSuite):
    backend = "nano-gpt"


class TestLaunch(suites.LaunchSuite):
    backend = "nano-gpt"
    experiment = EXPERIMENT


class _Steps:
    backend = "nano-gpt"
    experiment = EXPERIMENT

    def words(self, steps: int) -> Iterable[str]:
        return ["--steps", str(steps)]


class TestTrain(_Steps, suites.TrainSuite):
    ranks = (1, 2)


class TestResume(_Steps, suites.ResumeSuite):
    def saving(self, steps: int) -> Iterable[str]:
        return ["--save_interval", str(steps)]


def test_more_heads_than_width(primus_project: suites.MakeProject) -> None:
    project = primus_project({"x.yaml": EXPERIMENT})
    done = project.run("train", "pretrain", "--config", "x.yaml", "--heads", "3")
    assert done.exit_code == 1
    assert "width 32 is not divisible by heads 3" in done.err
