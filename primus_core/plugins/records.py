"""The records that plugins contribute through hooks.

They are frozen, cheap to make and import nothing: whatever is heavy is named by a *reference*
``"package.module:attribute"`` and imported only when, and in the process where, it is used. They are named tuples
because every command makes these classes first, and a dataclass takes ten times as long to make. Name their fields.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

type Ref = str
type Stage = Literal["pretrain", "posttrain"]
type Phase = Literal["import", "build", "train"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def load(ref: Ref) -> Any:
    """Import what a reference names.

    Raises ``ModuleNotFoundError`` or ``AttributeError`` as Python does: a wrong reference is a bug of its plugin.
    """
    module, _, attribute = ref.partition(":")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    return value


class Converter(NamedTuple):
    """Takes an engine's checkpoints to other formats and back, for ``primus convert``.

    ``find`` refers to ``def find(path: Path) -> Path | None``: the checkpoint that a path is or holds, None where it
    is none of this engine's; it looks at names of files and imports nothing heavy. ``convert`` refers to
    ``def convert(order: primus_core.convert.order.Order) -> Report``, imported in a process of its own.
    ``formats`` can be written besides the engine's own. ``logits`` refers to ``def logits(text: str) -> str``, called
    in a process of its own with the text of a ``primus_core.convert.order.Forward``, for ``primus verify --against``.
    """

    find: Ref
    convert: Ref
    formats: tuple[str, ...] = ("hf",)
    logits: Ref | None = None
    code: tuple[Path, ...] = ()
    """Python files that it lays beside models which transformers has no class for. Such code is run without asking."""


class Capability(NamedTuple):
    """What a backend says about one feature, in one sentence for its users, written as part of a message.

    ``feature`` is one of ``primus_core.config.capabilities.FEATURES``, or the backend's own with a ``title``.
    ``engine`` are the versions of the engine that it is true for, ``platforms`` where it works (none: everywhere),
    ``needs`` the distribution without which it does not.
    ``asked`` are parameters and values that ask for it, all of a mapping, any of the mappings. A value stands for
    itself; ``"> 1"`` is what is more; ``"any"`` is what is neither null nor the default.
    """

    feature: str
    support: Literal["full", "partial", "unsupported"]
    note: str
    title: str = ""
    engine: str = ""
    platforms: tuple[str, ...] = ()
    needs: str = ""
    asked: tuple[Mapping[str, Any], ...] = ()


class Backend(NamedTuple):
    """What drives one engine.

    ``trainer`` refers to ``def train(run: primus_core.run.context.Run) -> None``; it is imported in the worker only.
    ``schemas`` is a folder with one ``<engine>-<version>.json`` per supported engine version and, if the plugin adds
    keys of its own, a ``keys.json`` (format: ``primus_core.config.schema``).
    ``presets`` is a folder with ``models/*.yaml`` and ``modules/*.yaml``; ``examples`` one with experiment files.
    """

    name: str
    summary: str
    engine: str
    engine_versions: str
    trainer: Ref
    schemas: Path
    presets: Path
    examples: Path | None = None
    stages: tuple[Stage, ...] = ("pretrain",)
    requires: Mapping[str, str] = _NOTHING
    """Other distributions the engine needs, each with the tested range: ``{"torch": ">=2.11,<2.16"}``.

    Where builds for different hardware have names of their own, all stand in one key: ``"a | b"``.
    """
    optional: Mapping[str, str] = _NOTHING
    """Distributions that it uses when they are there, each with one sentence on what for."""
    templates: Path | None = None
    """A folder with experiments that ``primus init`` starts from: ``<stage>.yaml`` is small enough for any machine and
    names a model; ``<stage>-model.yaml`` trains the model that the user names at its full size."""
    headline: Mapping[str, str] = _NOTHING
    """What sums up a model, in words, and the parameter of each: ``{"layers": "num_layers"}``."""
    describe: Ref | None = None
    """More of the same where parameters do not tell: ``def describe(values) -> Mapping[str, object]``, of a model's
    parameters with dotted keys."""
    install: str = ""
    """The one command that installs what is missing."""
    platforms: tuple[str, ...] = ("cpu", "cuda", "rocm")
    capabilities: Ref | None = None
    """What it can do: a tuple of ``Capability``."""
    converter: Converter | None = None
    reporter: Literal["first", "last"] = "first"
    """Which rank knows the loss and so writes the metrics: the last one where pipeline stages hold it."""
    tool: bool = False
    """Whether its workers do something else than training a model: it is not offered where one chooses a backend."""


class Launcher(NamedTuple):
    """A way for worker processes to come to be.

    ``plan`` refers to ``def plan(request: LaunchRequest) -> Plan`` (see ``primus_core.launch.plan``);
    ``options`` to a list of ``click.Option`` for its command line.
    """

    name: str
    summary: str
    plan: Ref
    options: Ref
    extra: bool = False
    """Whether it takes options that it does not list: they come as ``options["extra"]``, word by word."""


class Device(NamedTuple):
    """One accelerator (or the CPU) as a platform found it. ``memory`` in bytes, ``peak_flops`` dense, per dtype."""

    name: str
    arch: str
    memory: int | None = None
    peak_flops: Mapping[str, float] = _NOTHING


class Platform(NamedTuple):
    """A kind of hardware. ``detect`` refers to ``def detect() -> tuple[Device, ...]``, empty where it is absent.

    Detection reads files or a vendor's tool, never an engine or torch. The platform of the highest ``rank`` that
    finds devices is the one that is used.
    """

    name: str
    summary: str
    detect: Ref
    rank: int = 0
    backend: str = "gloo"
    """The ``torch.distributed`` backend that suits it."""


class Command(NamedTuple):
    """A subcommand of ``primus``; ``command`` refers to a ``click.Command``, imported when it is called.

    A name of two words is a subcommand of an open group of the core, as ``primus data`` is one: ``"data tasks"``.
    """

    name: str
    summary: str
    command: Ref
    launches: bool = False
    """Whether it starts workers, and so may stand behind a launcher's ``--``."""


class MetricSink(NamedTuple):
    """A place that metrics go to.

    ``factory`` refers to ``def make(run: Run) -> Sink | None`` (see ``primus_core.run.sinks``): ``None`` says that
    this run does not want it. It is called on the reporting rank only. ``requires`` names the modules that must be
    importable for it, ``install`` the command that brings them: both are looked at before training starts.
    """

    name: str
    summary: str
    factory: Ref
    requires: tuple[str, ...] = ()
    install: str = ""


class Model(NamedTuple):
    """A model for a backend, which may be somebody else's. ``preset`` is a YAML file.

    ``builder`` refers to ``def build(run, **engine_arguments) -> model``; without one the engine builds it from the
    preset's values.
    """

    backend: str
    name: str
    preset: Path
    builder: Ref | None = None


class Dataset(NamedTuple):
    """A named source of text for ``primus data prepare``.

    ``read`` refers to ``def read(**options) -> Iterator[str]``.
    """

    name: str
    summary: str
    read: Ref


class PresetPath(NamedTuple):
    """One more folder with ``models/`` and ``modules/`` for a backend."""

    backend: str
    path: Path

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.path}"


class EnvVar(NamedTuple):
    """An environment variable for the workers, with who set it."""

    name: str
    value: str
    origin: str
    secret: bool = False


class Condition(NamedTuple):
    """When a patch is wanted. All that is given must hold; otherwise the patch is not needed, required or not.

    ``config`` values are compared with the run's parameters (dotted keys reach into mappings; a set means any of its
    members); ``present`` and ``missing`` name top-level modules that can or cannot be imported; ``engine`` says which
    engine versions need the patch at all, where ``Patch.engine_versions`` says with which it is known to work.
    """

    platforms: tuple[str, ...] = ()
    config: Mapping[str, Any] = _NOTHING
    present: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    engine: str = ""


class Patch(NamedTuple):
    """A named, versioned, checked replacement of something in an engine.

    ``target`` is ``"module:attribute"``; a class's attribute is ``"module:Class.method"``. ``replacement`` refers to
    ``def replace(original) -> new``, or to ``def replace(original, run) -> new`` when it takes two arguments; of a
    static or class method both see the plain function. ``aliases`` are further places that hold the same object
    (``from x import y`` in a module that was imported earlier); they get the replacement too.
    Patches of one ``set`` (and so of one phase) are applied all or none, as far as their conditions hold.
    ``fingerprints`` is a JSON file ``{patch name: {engine version: fingerprint}}`` shipped with the plugin and written
    by ``primus patches check --update``; a target whose owner keeps its API stable may go without (``None``).
    """

    name: str
    reason: str
    backend: str
    target: Ref
    replacement: Ref | Callable[..., Any]
    engine_versions: str
    phase: Phase = "build"
    when: Condition = Condition()
    aliases: tuple[Ref, ...] = ()
    set: str | None = None
    required: bool = True
    fingerprints: Path | None = None
    upstream: str | None = None
    """Link to the engine's issue or pull request, where there is one."""
