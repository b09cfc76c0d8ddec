"""Writes ``docs/reference``: hooks, commands and backends as the code has them. ``--check`` only says what is old."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from primus_core.cli.main import cli
from primus_core.plugins import hookspecs
from primus_core.plugins.manager import PluginManager

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = 100


def hooks() -> str:
    """Each hook with its signature, since when it exists, and its docstring."""
    parts = ["# Hooks", "Implement one with `primus_core.plugins.hookimpl`; take only the arguments that you need."]
    for name, spec in vars(hookspecs).items():
        if name.startswith("primus_"):
            about, _, example = inspect.getdoc(spec).partition("Example::")
            signature = str(inspect.signature(spec)).replace("'", "")
            parts += [f"## {name}", f"```python\n{name}{signature}\n```", f"Since {spec.since}. {_flowing(about)}"]
            parts += [f"```python\n{inspect.cleandoc(example)}\n```"]
    return _page(parts)


def commands() -> str:
    """The help of every command."""
    parts = ["# Commands", "What `--help` says of each."]
    for words, _ in _walk(cli, ()):
        done = CliRunner().invoke(cli, [*words, "--help"], prog_name="primus", terminal_width=WIDTH)
        if done.exit_code:
            raise SystemExit(f"primus {' '.join(words)} --help: {done.output}")
        parts += [f"## primus {' '.join(words)}".rstrip(), f"```text\n{done.output.rstrip()}\n```"]
    return _page(parts)


def backends() -> str:
    """What each backend can do."""
    names = [name for name, entry in PluginManager.load().named("primus_backends").items() if not entry.record.tool]
    parts = ["# Backends", "What each declares; what is asked for and cannot be had is refused before anything starts."]
    parts += [_run("backends", "list", "--format", "markdown")]
    for name in names:
        parts += [f"## {name}", _run("backends", "show", name, "--format", "markdown")]
    return _page(parts)


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=words[-1] if words else "primus", obj=None) as context:
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                if below is not None and not below.hidden:
                    yield from _walk(below, (*words, name))


def _run(*words: str) -> str:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False).output.strip()


def _flowing(text: str) -> str:
    """Docstring to Markdown: sub-headings as paragraphs of their own."""
    text = text.replace("``", "`")
    for heading in ("When it is called", "In which process", "What it may return"):
        text = text.replace(heading, f"\n\n*{heading}*", 1)
    return re.sub(r"\s*\n\n\s*", "\n\n", text).strip()


def _page(parts: list[str]) -> str:
    return "\n\n".join(["<!-- made by scripts/make_reference.py -->", *parts]) + "\n"


def main(check: bool) -> int:
    FOLDER.mkdir(exist_ok=True)
    old = []
    for make in (hooks, commands, backends):
        file, text = FOLDER / f"{make.__name__}.md", make()
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            old.append(file.name)
            if not check:
                file.write_text(text, encoding="utf-8")
    if old:
        print(f"{'older than the code' if check else 'written'}: {', '.join(old)}")
    return 1 if old and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
