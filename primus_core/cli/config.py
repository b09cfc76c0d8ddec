"""``primus config``: look at experiments without running them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from primus_core.cli.context import State, pass_state
from primus_core.config.check import check as check_experiment
from primus_core.config.experiment import CheckContext
from primus_core.config.resolve import resolve
from primus_core.errors import ConfigError, ExitCode, Problem, UserError
from primus_core.secrets import MASK

if TYPE_CHECKING:
    from primus_core.config.experiment import Experiment
    from primus_core.config.presets import Kind, Presets
    from primus_core.config.schema import Key, Schema
    from primus_core.plugins.records import Backend, Stage

_FILE = click.Path(path_type=Path)
_stage = click.option(
    "--stage", type=click.Choice(["pretrain", "posttrain"]), help="Default: what the experiment is for."
)
_backend = click.option("--backend", metavar="NAME", help="Instead of the experiment's framework.")
_OVERRIDES = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.group()
def config() -> None:
    """Look at experiments without running them."""


@config.command(context_settings=_OVERRIDES, options_metavar="[OPTIONS] [KEY=VALUE | --KEY VALUE] ...")
@click.argument("experiment", type=_FILE)
@click.option("--origins", is_flag=True, help="Say of each value where it was set and what it replaced.")
@_stage
@_backend
@click.pass_context
def show(ctx: click.Context, experiment: Path, origins: bool, stage: Stage | None, backend: str | None) -> None:
    """Print the resolved EXPERIMENT. What is printed can be given to --config again."""
    from primus_core.config.render import dump

    state = ctx.ensure_object(State)
    if str(experiment).startswith("-"):
        raise UserError(f"the experiment stands first: primus config show EXPERIMENT {experiment} ...")
    resolved = resolve(experiment, stage, ctx.args, state.plugins, backend, state.environ)
    _notices(check_experiment(resolved, CheckContext(), state.plugins, values_only=True))
    click.echo(dump(resolved, origins=origins), nl=False)


@config.command(context_settings=_OVERRIDES, options_metavar="[OPTIONS] [KEY=VALUE | --KEY VALUE] ...")
@click.argument("experiments", type=str, nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option("--gpus", type=click.IntRange(min=1), help="Check for this many GPUs in all.")
@click.option("--platform", metavar="NAME", help="Check for this kind of hardware: cpu, cuda, rocm.")
@_stage
@_backend
@pass_state
def check(
    state: State,
    experiments: tuple[str, ...],
    gpus: int | None,
    platform: str | None,
    stage: Stage | None,
    backend: str | None,
) -> int:
    """Say all that is wrong with each EXPERIMENT. Exit code 2 if anything is.

    KEY=VALUE and, behind the files, --KEY VALUE are laid over each of them.
    """
    files, words = _parted(experiments)
    if not files:
        raise UserError("no experiment to check")
    if platform is not None:
        state.plugins.select("primus_platforms", platform)
    context = CheckContext(world_size=gpus, platform=platform)
    wrong = 0
    for file in files:
        try:
            for line in _checked(state, file, stage, words, backend, context):
                click.echo(line)
        except ConfigError as error:
            wrong += 1
            click.echo(str(error), err=True)
    if wrong and len(files) > 1:
        click.echo(f"{wrong} of {len(files)} experiments are wrong", err=True)
    return ExitCode.USER_INPUT if wrong else ExitCode.DONE


def _parted(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Files, and what is laid over them: assignments anywhere, and all from the first ``--key`` on."""
    end = next((index for index, word in enumerate(arguments) if word.startswith("--")), len(arguments))
    assignments = [word for word in arguments[:end] if "=" in word and not Path(word).is_file()]
    return [Path(word) for word in arguments[:end] if word not in assignments], [*assignments, *arguments[end:]]


def _checked(
    state: State, file: Path, stage: Stage | None, words: Sequence[str], backend: str | None, context: CheckContext
) -> Iterator[str]:
    """A line for each stage that the file has a module for, or for the one that is asked for."""
    stages = [stage]
    for each in stages:
        resolved = resolve(file, each, words, state.plugins, backend, state.environ)
        if each is None:
            stages += [other for other in resolved.stages if other != resolved.stage]
        _notices(check_experiment(resolved, context, state.plugins))
        values = sum(1 for _ in resolved.config.leaves())
        amount = f"{_counted(values, 'value')} from {_counted(len(resolved.files), 'file')}"
        yield f"{file}: ok ({resolved.stage} with {resolved.backend}, {amount})"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


@config.command()
@click.argument("first", type=_FILE, metavar="A")
@click.argument("second", type=_FILE, metavar="B")
@_stage
@_backend
@pass_state
def diff(state: State, first: Path, second: Path, stage: Stage | None, backend: str | None) -> None:
    """Print the values in which the resolved experiments A and B differ, and where each was set."""
    one, other = (_values(resolve(file, stage, (), state.plugins, backend, state.environ)) for file in (first, second))
    names = [
        name
        for name in dict.fromkeys([*one, *other])
        if name not in one or name not in other or one[name].yaml != other[name].yaml
    ]
    for name in names:
        click.echo(name)
        for sign, side in (("-", one), ("+", other)):
            if value := side.get(name):
                click.echo(f"  {sign} {MASK if value.secret else value.yaml}  ({value.place})")
    if not names:
        click.echo("the same values")


@config.command(context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.option("--backend", metavar="NAME", help="Default: all backends that know the key.")
@pass_state
def explain(state: State, key: str, backend: str | None) -> None:
    """Say what KEY is: its type, default, choices, and the presets that set it."""
    chosen = _backends(state, backend)
    name = key.removeprefix("--").replace("-", "_") if key.startswith("--") else key
    found = False
    for each in chosen:
        schema = _schema(each)
        new = schema.renamed.get(name)
        if new is not None:
            click.echo(f"'{name}' is now called '{new.to}'{f' (since {new.since})' if new.since else ''}")
        known = schema.keys.get(new.to if new else name)
        inside = [below for below in schema.keys if below.startswith(f"{name}.")]
        if known is None and not inside:
            continue
        if found:
            click.echo()
        found = True
        click.echo("\n".join(_explained(state, each, known) if known else [f"{name} ({each.name})", *_listed(inside)]))
    if not found:
        from primus_core.config import layout

        own = layout.EXPERIMENT.keys.get(name)
        if own is not None:
            click.echo(f"{name} (experiment)\n  type     {own.expected()}\n  {own.help}")
            return
        schemas = [_schema(each) for each in chosen]
        hint = next((hint for schema in [*schemas, layout.EXPERIMENT] if (hint := schema.suggestion(name))), "")
        raise UserError(f"no backend knows the key '{name}'{hint}")


@config.command()
@click.option("--backend", metavar="NAME", help="Default: all backends.")
@pass_state
def schema(state: State, backend: str | None) -> None:
    """Print the JSON Schema of experiments, for editors."""
    from primus_core.config.jsonschema import experiment_schema
    from primus_core.config.presets import Presets

    chosen = _backends(state, backend)
    models = {each.name: Presets.of(each, state.plugins).names("models") for each in chosen}
    click.echo(json.dumps(experiment_schema({each.name: _schema(each) for each in chosen}, models), indent=1))


@config.command()
@click.argument("file", type=_FILE)
@click.option("--write", is_flag=True, help="Change the file; without it, say what would change.")
@click.option("--backend", metavar="NAME", help="Whose preset FILE is, if it is one.")
@pass_state
def migrate(state: State, file: Path, write: bool, backend: str | None) -> None:
    """Rename old keys in FILE in place. Comments and layout stay as they are."""
    from primus_core.config.migrate import apply, renames
    from primus_core.config.source import read

    problems: list[Problem] = []
    tree = read(file, str(file), problems)
    if tree is None or problems:
        raise ConfigError(problems)
    schemas = {each.name: _schema(each) for each in _backends(state, backend)}
    changes = renames(tree, schemas, problems)
    for change in changes:
        click.echo(f"{change.place}: {change.old} -> {change.new}")
    if changes and write:
        file.write_bytes(apply(file.read_bytes().decode("utf-8"), changes).encode("utf-8"))
    if problems:
        raise ConfigError(problems)
    if not changes:
        click.echo(f"{file}: nothing to rename")
    elif not write:
        click.echo("nothing was written; --write does it")


def _notices(notices: Iterable[Problem]) -> None:
    for notice in notices:
        click.echo(f"{notice.origin}: note: {notice.message}", err=True)


class _Value(NamedTuple):
    yaml: str
    place: str
    secret: bool = False


def _values(experiment: Experiment) -> Mapping[str, _Value]:
    """Everything that an experiment says, by its key."""
    from primus_core.config.render import shown

    file = str(experiment.file)
    top = ("stage", "backend", "work_group", "user_name", "exp_name", "workspace", "model")
    values = {name: _Value(str(getattr(experiment, name)), file) for name in top}
    for section in ("env", "launch", "metrics", "config"):
        for path, leaf in getattr(experiment, section).leaves():
            name = ".".join(path if section == "config" else (section, *path))
            value = _Value(shown(leaf.value), str(leaf.origin), name in experiment.secrets)
            values[f"{experiment.module}.{name}" if section == "config" else name] = value
    return values


def _backends(state: State, name: str | None) -> list[Backend]:
    if name is not None:
        return [state.plugins.backend(name)]
    found = (contribution.record for contribution in state.plugins.named("primus_backends").values())
    return [backend for backend in found if not backend.tool]


def _schema(backend: Backend) -> Schema:
    from primus_core.config.schema import for_backend

    return for_backend(backend)


def _explained(state: State, backend: Backend, key: Key) -> Iterator[str]:
    from primus_core.config.presets import Presets
    from primus_core.config.render import shown

    yield f"{key.name} ({backend.name}, {key.owner})"
    if key.help:
        yield f"  {key.help}"
    rows = [("type", key.expected() or "anything"), ("default", shown(key.default))]
    if key.choices:
        rows.append(("choices", ", ".join(map(shown, key.choices))))
    if key.group:
        rows.append(("group", key.group))
    if key.no_effect:
        rows.append(("note", f"does nothing here: {key.no_effect}"))
    rows += [("was", old) for old, new in _schema(backend).renamed.items() if new.to == key.name]
    for name, text in rows:
        yield f"  {name:8} {text}"
    presets = Presets.of(backend, state.plugins)
    kinds: tuple[Kind, ...] = ("modules", "models")
    for kind in kinds:
        for value, names in _setters(presets, kind, tuple(key.name.split("."))).items():
            yield f"  {value} in {kind[:-1]} {'preset' if len(names) == 1 else 'presets'} {', '.join(names)}"


def _setters(presets: Presets, kind: Kind, path: tuple[str, ...]) -> dict[str, list[str]]:
    """The presets of a kind that set a key themselves, by value."""
    from primus_core.config.render import shown
    from primus_core.config.source import read
    from primus_core.config.tree import Leaf

    setters: dict[str, list[str]] = {}
    for name in presets.names(kind):
        for file in presets.find(kind, name)[:1]:
            tree = read(file.path, file.source, [])
            node = tree.find(path) if tree else None
            if node is not None:
                setters.setdefault(shown(node.value if isinstance(node, Leaf) else node.plain()), []).append(name)
    return setters


def _listed(names: Iterable[str]) -> Iterator[str]:
    return (f"  {name}" for name in names)
