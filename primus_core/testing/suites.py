"""What every plugin with a backend must keep to, as classes to inherit.

A test module says ``class TestTrain(TrainSuite): backend = "my-engine"; experiment = "..."``. Whatever a suite needs to
know is an attribute or a method of it.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from primus_core.cli.shipped import models
from primus_core.config.experiment import Experiment
from primus_core.config.layout import DEFAULTS
from primus_core.config.presets import Presets
from primus_core.config.resolve import resolve
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend
from primus_core.testing.project import Project, Result

type MakeProject = Callable[[Mapping[str, str]], Project]

SECRET = "sekret-of-a-test"

_LIGHT = """
import inspect, sys
import {module} as plugin
for name, hook in list(vars(plugin).items()):
    if name.startswith("primus_") and inspect.isfunction(hook) and not inspect.signature(hook).parameters:
        list(hook())
print(*sorted({heavy!r} & set(sys.modules)))
"""
"""Imports an entry point, makes all its records, and prints which heavy modules that took."""


class Suite:
    """What all suites know of the backend."""

    backend: ClassVar[str]
    experiment: ClassVar[str] = ""
    """The text of an experiment that the CPU trains in seconds. It names itself by its file: no ``exp_name``."""

    def record(self) -> Backend:
        return PluginManager.load(environ={}).backend(self.backend)


class ConfigSuite(Suite):
    """The entry point is light; schema, presets and examples are right; what is wrong is named with its place."""

    entry_point: ClassVar[str]
    """The module that the entry point names."""
    heavy: ClassVar[tuple[str, ...]] = ("torch", "numpy", "jax")
    """Top-level modules that no command may import before a worker starts; add the engine's."""

    def engine_schema(self) -> Mapping[Path, str]:
        """The schema files that the installed engine asks for, with their contents."""
        raise NotImplementedError("say what the engine's schema files hold")

    def test_the_entry_point_is_light(self) -> None:
        code = _LIGHT.format(module=self.entry_point, heavy=set(self.heavy))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stdout.split(), f"{self.entry_point} imports {done.stdout}"

    def test_the_schema_is_that_of_the_engine(self) -> None:
        for file, text in self.engine_schema().items():
            assert file.is_file(), f"{file} is missing"
            assert file.read_text(encoding="utf-8") == text, f"{file} is not what the engine says"

    def test_every_preset_resolves(self, tmp_path: Path) -> None:
        plugins = PluginManager.load(environ={})
        backend = plugins.backend(self.backend)
        module = DEFAULTS[backend.stages[0]][0]
        file = tmp_path / "x.yaml"
        names, _ = models(Presets.of(backend, plugins))
        assert names, f"{backend.name} has no model"
        for name in names:
            file.write_text(f"modules: {{{module}: {{framework: {backend.name}, model: {name}.yaml}}}}\n")
            assert self._resolved(file, plugins).backend == backend.name

    def test_every_example_resolves(self) -> None:
        plugins = PluginManager.load(environ={})
        folder = plugins.backend(self.backend).examples
        for file in sorted(folder.rglob("*.yaml")) if folder else []:
            if "_base" not in file.parts:
                assert self._resolved(file, plugins).backend == self.backend

    def test_an_unknown_parameter_is_named_with_its_place(self, primus_project: MakeProject) -> None:
        module = DEFAULTS[self.record().stages[0]][0]
        text = (
            f"modules:\n  {module}:\n    framework: {self.backend}\n"
            f"    overrides:\n      no_such_parameter: 1\n      api_key: {SECRET}\n"
        )
        done = primus_project({"x.yaml": text}).run("config", "check", "x.yaml")
        assert done.exit_code == 2, str(done)
        assert any("x.yaml:5:" in line and "no_such_parameter" in line for line in done.err.splitlines()), done
        assert "Traceback" not in done.err
        assert SECRET not in done.out + done.err

    def _resolved(self, file: Path, plugins: PluginManager) -> Experiment:
        return resolve(file, None, [], plugins, environ={})


class CliSuite(Suite):
    """The commands that list things know the backend, and say so without importing the engine."""

    def test_it_is_listed(self, primus_project: MakeProject) -> None:
        done = primus_project({}).run("backends", "list").ok()
        assert self.backend in done.out.split()

    def test_init_writes_an_experiment_that_passes(self, primus_project: MakeProject) -> None:
        project = primus_project({})
        stage = self.record().stages[0]
        project.run("init", "--backend", self.backend, "--stage", stage, "x.yaml").ok()
        project.run("config", "check", "x.yaml").ok()


class LaunchSuite(Suite):
    """A plan can be shown, and showing it leaves nothing behind."""

    def test_a_dry_run_leaves_nothing(self, primus_project: MakeProject) -> None:
        project = primus_project({"x.yaml": self.experiment})
        stage = self.record().stages[0]
        done = project.run("train", stage, "--config", "x.yaml", "--dry-run").ok()
        assert done.out.strip()
        assert not done.new
        assert [file.name for file in project.folder.iterdir()] == ["x.yaml"]


class PatchSuite(Suite):
    """Patches fit the engine that is installed, and each says what it is for."""

    def test_every_patch_has_a_reason(self) -> None:
        patches = [each.record for each in PluginManager.load(environ={}).named("primus_patches").values()]
        own = [patch for patch in patches if patch.backend == self.backend]
        assert own, f"there is no patch for {self.backend}"
        assert not [patch.name for patch in own if not patch.reason]

    def test_patches_fit_the_installed_engine(self, primus_project: MakeProject) -> None:
        primus_project({}).run("patches", "check", "--backend", self.backend).ok()


class _Training(Suite):
    def words(self, steps: int) -> Iterable[str]:
        """Words of the command line that make a run end after so many steps."""
        raise NotImplementedError("say how the engine is told the number of steps")

    def train(self, project: Project, name: str, steps: int, *words: str) -> Result:
        """Train the experiment under this name."""
        project.write({f"{name}.yaml": self.experiment})
        stage = self.record().stages[0]
        return project.run("train", stage, "--config", f"{name}.yaml", *words, *self.words(steps)).ok()


class TrainSuite(_Training):
    """Three steps train, on each of these numbers of ranks."""

    ranks: ClassVar[tuple[int, ...]] = (1,)

    def test_three_steps_train(self, primus_project: MakeProject) -> None:
        project = primus_project({})
        for ranks in self.ranks:
            done = self.train(project, f"ranks-{ranks}", 3, "--nproc-per-node", str(ranks))
            losses = done.series("loss")
            assert list(losses) == [1, 2, 3], done
            assert all(math.isfinite(loss) for loss in losses.values()), losses
            assert done.attempt.world_size == ranks
            assert str(done.attempt.status()) == "done"


class ResumeSuite(_Training):
    """A run that is started again goes on as if it had never stopped, to the last bit of its losses."""

    def saving(self, steps: int) -> Iterable[str]:
        """Words that make a run save after so many steps, if that takes any."""
        return ()

    def test_resuming_is_exact(self, primus_project: MakeProject) -> None:
        project = primus_project({})
        whole = self.train(project, "whole", 4).series("loss")
        self.train(project, "parts", 2, *self.saving(2))
        rest = self.train(project, "parts", 4, *self.saving(2)).series("loss")
        assert list(rest) == [3, 4]
        assert rest == {step: whole[step] for step in (3, 4)}
