"""A resolved experiment as text: YAML that can be given to ``--config`` again, and the origin of every value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from primus_core.config.experiment import Experiment
from primus_core.config.interpolate import escape
from primus_core.config.source import scalar
from primus_core.config.tree import Leaf, Path, Tree
from primus_core.errors import Origin
from primus_core.secrets import MASK

_SAFE: Final = re.compile(r"[A-Za-z_/][\w./+*@=-]*(?: [\w./+*@=-]+)*")
_INDENT: Final = "  "


def dump(experiment: Experiment, *, origins: bool = False) -> str:
    """The experiment as YAML that resolves to the same values again, and needs no presets for it.

    A secret is replaced by the reference that it came from, or else by ``${PRIMUS_SECRET_...}``, marked ``# ***``:
    whoever reads the file again has to set that variable. With ``origins`` each value has its place behind it.
    """
    return "".join(f"{line}\n" for line in _Writer(experiment, origins).lines())


def origins(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """For each dotted key: where it was set, in which layer, and what it replaced, latest first.

    Parameters go by their own names; other sections have theirs in front. Secrets are masked.
    """
    found: dict[str, dict[str, Any]] = {}
    for section in ("", "env", "launch", "metrics"):
        tree: Tree = getattr(experiment, section or "config")
        for path, leaf in tree.leaves():
            name = ".".join((section, *path) if section else path)
            secret = name in experiment.secrets
            entry = _origin(experiment, leaf, secret)
            replaced = [_origin(experiment, old, secret) for old in _history(leaf)]
            found[name] = entry | ({"replaced": replaced} if replaced else {})
    return found


def sources(experiment: Experiment) -> list[str]:
    """What the values come from, in the order of reading: files, then the command line if it set any."""
    files = [source for source, layer in experiment.layers.items() if layer not in ("command line", "derived")]
    return files + ["command line"] * ("command line" in experiment.layers.values())


def shown(value: Any) -> str:
    """A value in YAML on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _quoted(escape(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(name)}: {shown(item)}" for name, item in value.items()) + "}"
    return "[" + ", ".join(map(shown, value)) + "]"


class _Writer:
    def __init__(self, experiment: Experiment, origins: bool) -> None:
        self.experiment, self.origins = experiment, origins

    def lines(self) -> Iterator[str]:
        experiment = self.experiment
        yield f"# {experiment.file}, resolved for {experiment.stage} with {experiment.backend}"
        yield f"# from {' + '.join(sources(experiment))}"
        for name in ("work_group", "user_name", "exp_name", "workspace"):
            yield f"{name}: {shown(str(getattr(experiment, name)))}"
        if experiment.requires is not None:
            yield f"requires: {shown(experiment.requires.value)}"
        for name in ("env", "launch", "metrics"):
            tree: Tree = getattr(experiment, name)
            if tree.items:
                yield f"{name}:"
                yield from self.tree(tree, 1, (name,), (name,))
        yield "modules:"
        yield f"{_INDENT}{experiment.module}:"
        yield f"{_INDENT * 2}framework: {shown(experiment.backend)}"
        yield f"{_INDENT * 2}config: null  # all values are written out below"
        if experiment.model is not None:
            yield f"{_INDENT * 2}model: {shown(experiment.model)}"
        if experiment.config.items:
            yield f"{_INDENT * 2}overrides:"
            yield from self.tree(experiment.config, 3, (), ())

    def tree(self, tree: Tree, depth: int, path: Path, section: Path) -> Iterator[str]:
        for name, node in tree.items.items():
            here = (*path, name)
            start = f"{_INDENT * depth}{_quoted(name)}:"
            if isinstance(node, Tree) and node.items:
                yield start
                yield from self.tree(node, depth + 1, here, section)
            elif isinstance(node, Tree):
                yield f"{start} {{}}"
            else:
                yield f"{start} {self.value(node, here)}"

    def value(self, leaf: Leaf, path: Path) -> str:
        name = ".".join(path)
        secret = name in self.experiment.secrets
        note = f"  # {_origin_text(self.experiment, leaf, secret)}" if self.origins else ""
        if not secret:
            return shown(leaf.value) + note
        if leaf.secret:
            return f"{_raw(leaf.written)}{note or f'  # {MASK}'}"
        variable = path[-1] if path[0] == "env" else secret_variable(name)
        return f"{_quoted(f'${{{variable}}}')}{note or f'  # {MASK}'}"


def secret_variable(key: str) -> str:
    """The variable that stands for a secret key in a file that ``dump`` wrote."""
    return "PRIMUS_SECRET_" + re.sub(r"\W", "_", key).upper()


def _raw(written: Any) -> str:
    if isinstance(written, str):
        return _quoted(written)
    if isinstance(written, Mapping):
        return "{" + ", ".join(f"{_quoted(name)}: {_raw(item)}" for name, item in written.items()) + "}"
    return "[" + ", ".join(map(_raw, written)) + "]" if isinstance(written, list) else shown(written)


def _quoted(text: str) -> str:
    """A text as YAML, plain where it stays text."""
    if isinstance(scalar(text), str) and _SAFE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=True) if text.isprintable() and text.isascii() else _escaped(text)


def _escaped(text: str) -> str:
    dumped: str = yaml.safe_dump(text, default_style='"', width=1 << 30, allow_unicode=True)
    return dumped.rstrip("\n")


def _number(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    return repr(value)


def _history(leaf: Leaf) -> Iterator[Leaf]:
    old = leaf.replaced
    while isinstance(old, Leaf):
        yield old
        old = old.replaced


def _layer(experiment: Experiment, leaf: Leaf) -> str:
    return experiment.layers.get(leaf.origin.source, "experiment")


def _origin(experiment: Experiment, leaf: Leaf, secret: bool) -> dict[str, Any]:
    entry = {"value": MASK if secret else leaf.value, "origin": str(leaf.origin), "layer": _layer(experiment, leaf)}
    if _substituted(leaf):
        entry["written"] = leaf.written
    return entry


def _substituted(leaf: Leaf) -> bool:
    return leaf.written is not None and "${" in str(leaf.written)


def _origin_text(experiment: Experiment, leaf: Leaf, secret: bool) -> str:
    text = _place(leaf.origin)
    if _substituted(leaf) and isinstance(leaf.written, str):
        text += f" from {leaf.written}"
    for old in _history(leaf):
        value = MASK if secret else _raw(old.value)
        text += f", over {value} ({_place(old.origin)})"
    return text.replace("\n", " ")


def _place(origin: Origin) -> str:
    return str(origin)
