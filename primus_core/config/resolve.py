"""From an experiment file to what one run is to do.

Layers, weakest first: module defaults < model preset < what plugins derive < the experiment's ``overrides`` < command
line. Around them the user's own defaults file, which may hold ``launch``, ``env`` and identity keys only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from primus_core.config import layout
from primus_core.config.experiment import Experiment
from primus_core.config.interpolate import Interpolator
from primus_core.config.overrides import Argument, lay_over, parse_arguments, with_known_name
from primus_core.config.presets import File as SourceFile
from primus_core.config.presets import Kind, Presets, Reader, stem
from primus_core.config.schema import Schema, for_backend
from primus_core.config.source import read
from primus_core.config.tree import Leaf, Path, Tree, merge_all, nest
from primus_core.errors import ConfigError, Origin, Problem, UserError
from primus_core.plugins.manager import PluginManager
from primus_core.plugins.records import Backend, Stage
from primus_core.secrets import is_secret_key, is_secret_variable


def resolve(
    file: File,
    stage: Stage | None,
    overrides: Sequence[str],
    plugins: PluginManager,
    backend: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Experiment:
    """Read an experiment with all that it builds on.

    ``stage`` None: the one that the experiment has a module for. ``backend`` replaces the experiment's framework.
    Raises ``ConfigError`` with everything that is wrong so far, unknown keys and wrong types included; a file that
    resolves still has to pass ``primus_core.config.check.check``.
    """
    return _Resolution(file, stage, overrides, plugins, backend, environ).run()


@dataclass(frozen=True, slots=True)
class _Module:
    """The module that runs."""

    name: str
    stage: Stage
    tree: Tree

    @property
    def overrides(self) -> Tree:
        node = self.tree.items.get("overrides")
        return node if isinstance(node, Tree) else Tree(self.tree.origin)


class _Resolution:
    """One call of ``resolve``: what was read, and what was found wrong."""

    def __init__(
        self,
        file: File,
        stage: Stage | None,
        overrides: Sequence[str],
        plugins: PluginManager,
        backend: str | None,
        environ: Mapping[str, str],
    ) -> None:
        self.file, self.stage, self.words, self.plugins = file, stage, overrides, plugins
        self.forced, self.environ = backend, environ
        self.problems: list[Problem] = []
        self.reader = Reader(self.problems, environ)
        self.layers = self.reader.layers
        self.config: str | None = None

    def run(self) -> Experiment:
        top = self._experiment()
        arguments = parse_arguments(self.words, self.problems)
        for index in range(1, len(self.words) + 1):
            self.layers[f"command line, argument {index}"] = "command line"
        top, parameters = self._lay_over_top(top, arguments)
        top = layout.EXPERIMENT.coerce(top)
        module = self._module(top)
        if module is None:
            self._check_top(top)
            raise ConfigError(self._errors())
        early = self._early(module, top)
        backend = self._backend(module, early)
        if backend is None:
            self._check_top(top)
            raise ConfigError(self._errors())
        if module.stage not in backend.stages:
            place = _place(module.tree)
            self._error(place, f"backend '{backend.name}' cannot {module.stage}; it can {', '.join(backend.stages)}")
        schema = for_backend(backend)
        presets = Presets.of(backend, self.plugins)
        defaults, model = self._presets(early, module, presets, schema)
        own = schema.rename(module.overrides, self.problems)
        known = [with_known_name(argument, schema.knows) for argument in parameters]
        outside = [argument for argument in known if argument.path[0] in layout.TOP and not schema.knows(argument.path)]
        top = lay_over(top, outside, self.problems)
        inside = [argument for argument in known if argument not in outside and not self._stray(argument, schema)]
        known = self._renamed(inside, schema)
        below = defaults.merge(model)

        def build(derived: Tree, problems: list[Problem]) -> tuple[Tree, Tree]:
            config = schema.coerce(lay_over(below.merge(derived).merge(own), known, problems))
            inner, outer = (
                Interpolator(self.environ, (config, top), problems, is_text, lambda path: _is_secret(path, schema))
                for is_text in (schema.is_text, layout.is_text)
            )
            return schema.coerce(inner.tree(config)), outer.tree(top.without("modules", "platform", "requires"))

        config, outer = build(Tree(own.origin), self.problems)
        self._check_top(top._replace(items={**top.items, **outer.items}))
        if self._errors():
            raise ConfigError({*self._errors(), *schema.check(config)})
        experiment = self._assemble(module, backend, early, schema, top, config, outer)
        derived = self._derive(experiment, below)
        if derived is None:
            return experiment
        config, outer = build(derived, [])
        return self._assemble(module, backend, early, schema, top, config, outer)

    # --- the experiment's own keys --------------------------------------------------------------------------------

    def _experiment(self) -> Tree:
        """The experiment over the user's own defaults."""
        file = SourceFile(self.file, str(self.file))
        top = self.reader.experiment(file)
        empty = not top.items and not self._errors()
        if empty:
            self._error(Origin(str(self.file), 1, 1), "the file is empty; an experiment has 'modules'")
        return self._user_defaults().merge(top)

    def _user_defaults(self) -> Tree:
        """``~/.config/primus/config.yaml``, if there is one and it is not switched off."""
        nothing = Tree(Origin(str(self.file), 1, 1))
        home = self.environ.get("XDG_CONFIG_HOME") or (
            f"{self.environ['HOME']}/.config" if self.environ.get("HOME") else None
        )
        if home is None or self.environ.get("PRIMUS_NO_USER_CONFIG", "0") not in ("", "0"):
            return nothing
        path = File(home) / "primus" / "config.yaml"
        if not path.is_file():
            return nothing
        source = str(path)
        if self.environ.get("HOME") and path.is_relative_to(self.environ["HOME"]):
            source = f"~/{path.relative_to(self.environ['HOME'])}"
        self.layers[source] = "user defaults"
        self.reader.files.append(path)
        tree = read(path, source, self.problems) or nothing
        foreign = [name for name in tree.items if name not in layout.USER]
        for name in foreign:
            self._error(_place(tree.items[name]), f"'{name}' cannot be set here; only {', '.join(layout.USER)} can")
        return tree.without(*foreign)

    def _lay_over_top(self, top: Tree, arguments: list[Argument]) -> tuple[Tree, list[Argument]]:
        """The experiment with the arguments that are surely its own laid over it, and the others."""
        heads = {"modules", *layout.TOP} - {"metrics"}
        own: list[Argument] = []
        others: list[Argument] = []
        for argument in arguments:
            named = with_known_name(argument, lambda path: path[0] in heads and layout.EXPERIMENT.knows(path))
            if named.path[0] == "modules" and named.path[2:3] == ("overrides",) and len(named.path) > 3:
                others.append(named._replace(path=named.path[3:]))
            else:
                (own if named.path[0] in heads else others).append(named)
        return lay_over(top, own, self.problems), others

    def _stray(self, argument: Argument, schema: Schema) -> bool:
        """Whether an argument is no parameter but looks like a key of the experiment; notes the problem."""
        name = ".".join(argument.path)
        if schema.knows(argument.path) or schema.suggestion(name):
            return False
        hint = layout.EXPERIMENT.suggestion(name)
        if hint:
            self._error(argument.node.origin, f"unknown key '{name}'{hint}")
        return bool(hint)

    def _renamed(self, arguments: list[Argument], schema: Schema) -> list[Argument]:
        """The arguments with renamed keys under their new names."""
        together = lay_over(Tree(Origin(str(self.file))), arguments, [])
        schema.rename(together, self.problems)
        trees = [(argument, nest(argument.path, argument.node)) for argument in arguments]
        new = [(argument, tree, schema.rename(tree, [])) for argument, tree in trees]
        return [argument if renamed is tree else Argument((), renamed) for argument, tree, renamed in new]

    def _check_top(self, top: Tree) -> None:
        """Unknown keys and wrong types outside the parameters; notices about keys of old files."""
        found: list[Problem] = []
        for module, node in _modules(top).items():
            legacy = [name for name in node.items if name in layout.LEGACY] if isinstance(node, Tree) else []
            for name in legacy:
                assert isinstance(node, Tree)
                place = _place(node.items[name])
                message = f"'modules.{module}.{name}' does nothing: {layout.LEGACY[name]}"
                found.append(Problem(place, message, "notice"))
            if isinstance(node, Tree) and legacy:
                top = _replaced(top, ("modules", module), node.without(*legacy))
        platform = top.items.get("platform")
        if platform is not None:
            found.append(Problem(_place(platform), "'platform' does nothing: the hardware is recognised", "notice"))
        found += layout.EXPERIMENT.check(_without_references(top), _short)
        self.problems += (problem for problem in found if problem not in self.problems)

    def _module(self, top: Tree) -> _Module | None:
        """The module for the stage."""
        modules = _modules(top)
        known = {name: layout.MODULES[name] for name in modules if name in layout.MODULES}
        stages = set(known.values())
        stage: Stage = self.stage or ("posttrain" if stages == {"posttrain"} else "pretrain")
        fitting = [name for name, of in known.items() if of == stage]
        place = _place(top.items["modules"]) if "modules" in top.items else Origin(str(self.file), 1, 1)
        if len(fitting) > 1:
            self._error(_place(modules[fitting[1]]), f"both {' and '.join(fitting)} are for {stage}; keep one")
        if not fitting:
            if known:
                other = next(iter(known))
                command = f"primus train {known[other]}"
                message = f"this experiment has no module for {stage}, only '{other}'; use: {command}"
                self._error(_place(modules[other]), message)
            elif top.items and not isinstance(top.items.get("modules"), Tree):
                wanted = layout.DEFAULTS[stage][0]
                self._error(place, f"'modules' with a '{wanted}' is missing")
            elif top.items and not modules:
                self._error(place, f"'modules' is empty; it takes one of {', '.join(layout.MODULES)}")
            return None
        name = fitting[0]
        tree = modules[name]
        if not isinstance(tree, Tree):
            return None
        return _Module(name, stage, tree)

    def _early(self, module: _Module, top: Tree) -> dict[str, Leaf]:
        """The keys that decide what else is read: framework, config, model."""
        wanted = Tree(
            module.tree.origin,
            {name: node for name in ("framework", "config", "model") if (node := module.tree.items.get(name))},
        )
        prefix = ("modules", module.name)
        tree = Interpolator(self.environ, (top,), self.problems, layout.is_text).tree(wanted, prefix)
        return {name: node for name, node in tree.items.items() if isinstance(node, Leaf)}

    def _backend(self, module: _Module, early: Mapping[str, Leaf]) -> Backend | None:
        framework = early.get("framework")
        if self.forced is not None:
            return self.plugins.backend(self.forced)
        if framework is None or not isinstance(framework.value, str):
            if "framework" not in module.tree.items:
                self._error(_place(module.tree), f"'modules.{module.name}' names no 'framework' (the backend)")
            return None
        try:
            return self.plugins.backend(framework.value)
        except UserError as error:
            self._error(framework.origin, str(error))
            return None

    def _presets(
        self, early: Mapping[str, Leaf], module: _Module, presets: Presets, schema: Schema
    ) -> tuple[Tree, Tree]:
        """Module defaults and model preset, each with its renamed keys."""
        nothing = Tree(module.tree.origin)
        config, model = early.get("config"), early.get("model")
        if config is None:
            for name in layout.DEFAULTS[module.stage]:
                if presets.find("modules", name):
                    place = _place(module.tree)
                    config = Leaf(name, place, place)
                    break
        if config is not None and config.value is None:
            return nothing, nothing
        self.config = str(config.value) if config is not None else None
        return self._preset(config, "modules", presets, schema), self._preset(model, "models", presets, schema)

    def _preset(self, leaf: Leaf | None, kind: Kind, presets: Presets, schema: Schema) -> Tree:
        if leaf is None or not isinstance(leaf.value, str):
            return Tree(Origin(str(self.file)))
        beside = File(leaf.origin.source)  # for the command line that is the working folder
        found: list[Problem] = []
        tree = schema.rename(self.reader.named(leaf, kind, presets, beside), found)
        self.problems += (problem for problem in found if problem.severity == "error")
        return tree

    def _derive(self, experiment: Experiment, below: Tree) -> Tree | None:
        """What plugins derive from the values; None where that is nothing."""
        found = self.plugins.contributions("primus_resolve_config", experiment=experiment)
        trees = []
        for contribution in found:
            origin = Origin(f"derived by {contribution.plugin.name}")
            self.layers[origin.source] = "derived"
            trees += [nest(tuple(key.split(".")), _node(value, origin)) for key, value in contribution.record.items()]
        return merge_all(trees, below.origin) if trees else None

    # --- the result -----------------------------------------------------------------------------------------------

    def _assemble(
        self,
        module: _Module,
        backend: Backend,
        early: Mapping[str, Leaf],
        schema: Schema,
        top: Tree,
        config: Tree,
        outer: Tree,
    ) -> Experiment:
        user = self.environ.get("USER") or self.environ.get("LOGNAME") or "user"
        defaults = {"work_group": "default", "user_name": user, "exp_name": self.file.stem, "workspace": "./output"}
        identity = {}
        for name in layout.IDENTITY:
            leaf = outer.items.get(name)
            value = leaf.value if isinstance(leaf, Leaf) else defaults[name]
            identity[name] = str(value)
            if name != "workspace" and isinstance(leaf, Leaf):
                self._check_path_part(name, str(value), leaf.origin)
        if self._errors():
            raise ConfigError(self._errors())
        env = _as_text(_tree(outer, "env"))
        launch = _tree(outer, "launch")
        requires = top.items.get("requires")
        model = early.get("model")
        model_name = stem(str(model.value)) if model is not None and model.value is not None else None
        registered = self.plugins.models().get((backend.name, model_name)) if model_name else None
        metrics = _tree(outer, "metrics")
        leaves = [*config.leaves(), *env.leaves(("env",)), *launch.leaves(("launch",)), *metrics.leaves(("metrics",))]
        secrets = {
            ".".join(path)
            for path, leaf in leaves
            if leaf.secret or (isinstance(leaf.value, str) and leaf.value and _is_secret(path, schema))
        }
        return Experiment(
            file=self.file,
            work_group=identity["work_group"],
            user_name=identity["user_name"],
            exp_name=identity["exp_name"],
            workspace=File(identity["workspace"]).expanduser(),
            module=module.name,
            stage=module.stage,
            stages=tuple(dict.fromkeys(layout.MODULES[name] for name in _modules(top) if name in layout.MODULES)),
            backend=backend.name,
            model=model_name,
            builder=registered.record.builder if registered else None,
            preset=stem(self.config) if self.config else None,
            config=config,
            launch=launch,
            env=env,
            metrics=metrics,
            requires=requires if isinstance(requires, Leaf) else None,
            files=tuple(self.reader.files),
            notices=tuple(sorted((p for p in self.problems if p.severity == "notice"), key=lambda p: p.origin)),
            layers=dict(self.layers),
            secrets=frozenset(secrets),
        )

    def _check_path_part(self, name: str, value: str, origin: Origin) -> None:
        if not value or value.startswith("/") or ".." in value.split("/") or not value.isprintable():
            self._error(origin, f"'{name}' is part of a path and cannot be {value!r}")

    def _error(self, origin: Origin, message: str) -> None:
        problem = Problem(origin, message)
        if problem not in self.problems:
            self.problems.append(problem)

    def _errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]


def _short(key: str) -> str:
    """A key of an experiment without the module that it belongs to."""
    head, _, rest = key.removeprefix("modules.").partition(".")
    return rest if key.startswith("modules.") and rest and head in layout.MODULES else key


def _modules(top: Tree) -> Mapping[str, Leaf | Tree]:
    node = top.items.get("modules")
    return node.items if isinstance(node, Tree) else {}


def _place(node: Leaf | Tree) -> Origin:
    return node.key or node.origin


def _replaced(tree: Tree, path: Path, node: Leaf | Tree) -> Tree:
    head, *rest = path
    below = tree.items.get(head)
    if rest and isinstance(below, Tree):
        node = _replaced(below, tuple(rest), node)
    return tree._replace(items={**tree.items, head: node})


def _tree(outer: Tree, name: str) -> Tree:
    node = outer.items.get(name)
    return node if isinstance(node, Tree) else Tree(node.origin if node else outer.origin)


def _node(value: Any, origin: Origin) -> Leaf | Tree:
    if isinstance(value, Mapping):
        return Tree(origin, {str(name): _node(item, origin) for name, item in value.items()}, origin)
    return Leaf(value, origin, origin)


def _as_text(env: Tree) -> Tree:
    """Environment values with numbers as the text that was written."""

    def text(leaf: Leaf) -> Leaf:
        if isinstance(leaf.value, bool) or not isinstance(leaf.value, int | float):
            return leaf
        written = leaf.written if isinstance(leaf.written, str) and "${" not in leaf.written else str(leaf.value)
        return leaf._replace(value=written)

    return env._replace(
        items={name: text(node) if isinstance(node, Leaf) else node for name, node in env.items.items()}
    )


def _without_references(tree: Tree, prefix: Path = ()) -> Tree:
    """The tree less the keys whose values hold a substitution: their types are not known yet."""
    items: dict[str, Leaf | Tree] = {}
    for name, node in tree.items.items():
        path = (*prefix, name)
        if isinstance(node, Tree):
            items[name] = _without_references(node, path) if ".".join(path) in layout.EXPERIMENT.sections else node
        elif not (layout.EXPERIMENT.key(path) and isinstance(node.value, str) and "${" in node.value):
            items[name] = node
    return tree._replace(items=items)


def _is_secret(path: Path, schema: Schema) -> bool:
    key = schema.key(path)
    if key is not None:
        return key.hidden
    return is_secret_variable(path[-1]) if path[0] == "env" else is_secret_key(path[-1])
