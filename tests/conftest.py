"""What tests of all packages share: fake installed distributions, and the command line in a process of its own."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from primus_core.plugins.manager import PluginManager

OTHERS = [entry.dist.name for entry in importlib.metadata.entry_points(group="primus") if entry.dist]


@dataclass(frozen=True)
class Site:
    """A folder on the path of Python, with installed distributions in it; plugins from elsewhere are disabled."""

    folder: Path
    warnings: list[str]

    def install(
        self,
        distribution: str,
        source: str = "",
        version: str = "1.0",
        module: str | None = None,
        requires: Sequence[str] = (),
    ) -> Path:
        """Add a distribution; with ``source``, its module is a plugin. Gives the module's file."""
        name = module or distribution.replace("-", "_")
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}")
        file = self.folder / f"{name}.py"
        if source:
            plugin = distribution.removeprefix("primus-")
            (info / "entry_points.txt").write_text(f"[primus]\n{plugin} = {name}\n")
            file.write_text(HEAD + textwrap.dedent(source))
        return file

    def load(self, environ: Mapping[str, str] | None = None, primusfile: Path | None = None) -> PluginManager:
        """The plugins in this process; ``warnings`` gets their complaints."""
        return PluginManager.load(primusfile, _without_others(environ or {}), self.warnings.append)

    def primus(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run ``primus`` with these distributions installed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PRIMUS_")}
        command = [str(Path(sys.executable).parent / "primus"), *words]
        return subprocess.run(
            command,
            env=inherited | {"PYTHONPATH": str(self.folder)} | _without_others(environ),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def _without_others(environ: Mapping[str, str]) -> dict[str, str]:
    disabled = [*OTHERS, *filter(None, [environ.get("PRIMUS_DISABLE_PLUGINS")])]
    return {**environ, "PRIMUS_DISABLE_PLUGINS": ",".join(disabled)}


HEAD = """\
from pathlib import Path
import click
from primus_core.errors import *
from primus_core.plugins import hookimpl
from primus_core.plugins.records import *

def backend(name, engine="primus-core", versions="", **more):
    return Backend(name=name, summary=name.title(), engine=engine, engine_versions=versions, trainer="nowhere:train",
                   schemas=Path(), presets=Path(), **more)

"""
HEAD_LINES = HEAD.count("\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site; the modules that are imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder, [])
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
