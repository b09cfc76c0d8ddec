"""``primus plugins new``: a plugin project of one's own, from the example that the tests install and run."""

from __future__ import annotations

import keyword
import os
import re
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import click

import primus_core
from primus_core.errors import EnvironmentFault, UserError

_NAME = "nano-gpt"
_NAMES = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache", "dist", "build", ".venv", "output")


@click.command()
@click.argument("name")
@click.argument("path", required=False, type=click.Path(path_type=Path))
def new(name: str, path: Path | None) -> None:
    """Write a project with a backend NAME to the folder PATH (default: primus-NAME): it trains, and its tests pass."""
    _check(name)
    dest = path or Path(f"primus-{name}")
    if os.path.lexists(dest):
        raise UserError(f"{dest} exists already and is not overwritten")
    write(name, dest)
    click.echo(dest)
    experiment = f"src/primus_{_module(name)}/examples/tiny.yaml"
    click.echo(
        f"next: cd {dest} && pip install -e '.[test]' && pytest\n      primus train pretrain --config {experiment}",
        err=True,
    )


def write(name: str, dest: Path) -> None:
    """Copy the example with the name replaced; ``dest`` is complete or not there. Raises ``UserError``."""
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as work:
            made = Path(work) / "project"
            shutil.copytree(_example(), made, ignore=_LEFT_OUT)
            for file in sorted(made.rglob("*"), reverse=True):
                if file.is_file():
                    file.write_text(_renamed(file.read_text(encoding="utf-8"), name), encoding="utf-8")
                file.rename(file.with_name(_renamed(file.name, name)))
            made.rename(dest)
    except OSError as error:
        raise UserError(f"cannot write {dest}: {error.strerror}") from error


def _example() -> Path:
    """The example, as the wheel has it or as it lies in the repository."""
    package = Path(primus_core.__file__).parent
    places = [package / "example_plugin", package.parent / "examples" / "plugins" / _NAME]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise EnvironmentFault("this installation of primus-core lacks its example plugin: install it again")
    return found


def _check(name: str) -> None:
    """Raise ``UserError`` where the name cannot be that of a distribution, a module and a backend."""
    if not _NAMES.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be the name of a plugin: small letters, digits and single hyphens, as my-engine"
        )
    if name.startswith("primus"):
        raise UserError(f"{name!r} names the plugin: leave out primus, the project is called primus-NAME")
    module = _module(name)
    installed = metadata.packages_distributions()
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UserError(f"{name!r} cannot be the name of a plugin: Python has {module} already")
    for taken in (module, f"primus_{module}"):
        if taken in installed:
            raise UserError(f"{name!r} is taken: {installed[taken][0]} has a module {taken}")


def _module(name: str) -> str:
    return name.replace("-", "_")


def _renamed(text: str, name: str) -> str:
    return text.replace(_NAME, name).replace(_module(_NAME), _module(name))
