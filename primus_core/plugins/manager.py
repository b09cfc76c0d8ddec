"""Finds plugins, keeps broken ones from taking the command down, and asks the others.

Plugins are Python modules behind entry points of the group ``primus``. The core's own parts are registered first,
through the same hooks.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import pluggy

from primus_core.errors import EnvironmentFault, PrimusError, Problem, UserError
from primus_core.plugins import builtin, distributions, hookspecs, records
from primus_core.plugins.distributions import load_entry_point, normal
from primus_core.plugins.info import Contribution, PluginInfo, describe, place_of
from primus_core.plugins.known import DISTRIBUTIONS
from primus_core.plugins.made_for import contains, core_versions
from primus_core.plugins.trace import brief

PROJECT = "primus"
CORE = "core"
_CORE_KEY = "primus-core:core"

RECORDS: Mapping[str, type] = {
    "primus_backends": records.Backend,
    "primus_launchers": records.Launcher,
    "primus_platforms": records.Platform,
    "primus_commands": records.Command,
    "primus_metric_sinks": records.MetricSink,
    "primus_models": records.Model,
    "primus_datasets": records.Dataset,
    "primus_preset_paths": records.PresetPath,
    "primus_check_config": Problem,
    "primus_patches": records.Patch,
    "primus_launch_env": records.EnvVar,
}
"""What each contributing hook yields. The other hooks return one value, or nothing."""


class BrokenPlugin(Exception):
    """What is wrong with a plugin, found by looking at it."""


class _Source(NamedTuple):
    """A plugin before it is loaded."""

    name: str
    entry: str
    distribution: str
    version: str
    load: Callable[[], Any]
    file: Path | None = None
    core: str = ""
    """The versions of the core that it is made for, as its distribution says."""


class PluginManager:
    """The plugins of one command or worker. Make one with ``PluginManager.load()``."""

    def __init__(self, environ: Mapping[str, str], warn: Callable[[str], None] | None = None) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._known = tuple(sorted(vars(self._pluggy.hook)))
        self._infos: dict[str, PluginInfo] = {}
        self._cache: dict[str, tuple[Contribution[Any], ...]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._warn = warn or _to_stderr
        self._trace = environ.get("PRIMUS_TRACE_HOOKS", "0") not in ("", "0")
        if self._trace:
            self._pluggy.add_hookcall_monitoring(self._trace_before, self._trace_after)

    @classmethod
    def load(
        cls,
        primusfile: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        warn: Callable[[str], None] | None = None,
    ) -> PluginManager:
        """Find and import all plugins.

        ``primusfile`` is a Python file that implements hooks without packaging. ``warn`` gets one line for each
        plugin that breaks; it goes to stderr by default. Raises ``UserError`` for a ``primusfile`` that is missing or
        wrong; nothing for a plugin.
        """
        manager = cls(environ, warn)
        manager._add(_Source(CORE, builtin.__name__, "primus-core", version_of("primus-core"), lambda: builtin))
        sources = sorted(_sources(), key=lambda source: (source.distribution, source.name))
        disabled = manager._disabled(sources, environ)
        for source in sources:
            if disabled & {source.name, normal(source.distribution)}:
                manager._infos[_key(source)] = _info(source, "disabled")
            else:
                manager._add(source)
        if primusfile is not None:
            manager._add_file(primusfile)
        return manager

    # --- what there is -------------------------------------------------------------------------------------------

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's own calls, where the exceptions of implementations propagate."""
        return self._pluggy.hook

    @property
    def infos(self) -> tuple[PluginInfo, ...]:
        """All plugins: the core first, then by distribution, whatever their status."""
        return tuple(self._infos.values())

    @property
    def broken(self) -> tuple[PluginInfo, ...]:
        return tuple(info for info in self.infos if info.status == "broken")

    def owner_of(self, error: BaseException) -> PluginInfo | None:
        """The plugin, not the core, in whose code an exception was raised, deepest frame first."""
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        candidates = [info for info in self.infos if info.name != CORE]
        return next((info for file in reversed(files) for info in candidates if info.owns(file)), None)

    # --- asking plugins -------------------------------------------------------------------------------------------

    def contributions(self, hook_name: str, **arguments: Any) -> tuple[Contribution[Any], ...]:
        """What all plugins contribute through a hook, in the order of registration.

        Without arguments (registration, asked once) a plugin that raises or yields something else becomes broken and
        contributes nothing. With arguments it takes part in the user's work: an ``EnvironmentFault`` names it, and a
        ``PrimusError`` of its own passes as it is.
        """
        if not arguments and hook_name in self._cache:
            return self._cache[hook_name]
        found: list[Contribution[Any]] = []
        for implementation in self._implementations(hook_name):
            key = implementation.plugin_name
            try:
                values = self._records(hook_name, implementation, arguments)
            except Exception as error:
                if key == _CORE_KEY or (arguments and isinstance(error, PrimusError)):
                    raise
                info = self._infos[key]
                reason = f"{hook_name}: {error if isinstance(error, BrokenPlugin) else describe(error, info)}"
                if arguments:
                    raise EnvironmentFault(
                        f"plugin {info.name!r} ({info.source}) failed in {reason}; "
                        f"run without it with PRIMUS_DISABLE_PLUGINS={info.name}"
                    ) from error
                self._break(key, reason, error)
                continue
            place = place_of(implementation.function)
            found += (Contribution(record=value, plugin=self._infos[key], place=place) for value in values)
        result = tuple(found)
        if not arguments:
            self._cache[hook_name] = result
        return result

    def registrations(self) -> dict[str, tuple[Contribution[Any], ...]]:
        """All that plugins register, by hook."""
        asked = (name for name in RECORDS if not getattr(self._pluggy.hook, name).spec.argnames)
        found = {name: self.contributions(name) for name in asked}
        return {name: self._cache[name] for name in found}  # one that broke on the way is out of all

    def conflicts(self) -> tuple[str, ...]:
        """A message for each name that two plugins claim."""
        messages = []
        for hook_name, contributions in self.registrations().items():
            grouped = _models_by_name if hook_name == "primus_models" else _grouped
            for name, same in grouped(contributions).items():
                if len(same) > 1:
                    messages.append(self._conflict(hook_name, name, same))
        return tuple(messages)

    def named(self, hook_name: str) -> dict[str, Contribution[Any]]:
        """Contributions by name; an ``EnvironmentFault`` for a name that two plugins claim."""
        return {
            name: self._single(hook_name, name, same) for name, same in _grouped(self.contributions(hook_name)).items()
        }

    def models(self) -> dict[tuple[str, str], Contribution[records.Model]]:
        """Models by ``(backend, name)``; an ``EnvironmentFault`` for one that two plugins claim."""
        return {
            (same[0].record.backend, same[0].record.name): self._single("primus_models", name, same)
            for name, same in _models_by_name(self.contributions("primus_models")).items()
        }

    def select(self, hook_name: str, name: str) -> Contribution[Any]:
        """The one contribution of this name.

        Raises ``EnvironmentFault`` when two plugins claim the name or the plugin that should have it cannot be used,
        ``UserError`` with what there is and a suggestion otherwise.
        """
        grouped = _grouped(self.contributions(hook_name))
        if name in grouped:
            return self._single(hook_name, name, grouped[name])
        kind = kind_of(hook_name)
        self.refuse_unusable(kind, name)
        there = f"installed: {', '.join(sorted(grouped))}" if grouped else f"no {kind} is installed"
        raise UserError(f"unknown {kind} {name!r} ({there}{self._suspects()}){did_you_mean(name, grouped)}")

    def refuse_unusable(self, kind: str, name: str) -> None:
        """Raise ``EnvironmentFault`` if a broken or disabled plugin goes by this name: it is what the user wants."""
        for info in self.infos:
            if name not in (info.name, info.distribution, info.distribution.removeprefix("primus-")):
                continue
            if info.status == "broken":
                raise EnvironmentFault(
                    f"{kind} {name!r} is not available: plugin {info.name!r} ({info.source}) is broken: {info.error}"
                )
            if info.status == "disabled":
                raise EnvironmentFault(
                    f"{kind} {name!r} is not available: plugin {info.name!r} ({info.source}) "
                    "is disabled by PRIMUS_DISABLE_PLUGINS"
                )

    def backend(self, name: str) -> records.Backend:
        """The backend of this name.

        Raises as ``select`` does, and an ``EnvironmentFault`` with what to install for a known one that is not there.
        """
        there = {each.record.name for each in self.contributions("primus_backends")}
        if name in DISTRIBUTIONS and name not in there:
            self.refuse_unusable("backend", name)
            raise EnvironmentFault(f"backend {name!r} is not installed: pip install {DISTRIBUTIONS[name]}")
        backend: records.Backend = self.select("primus_backends", name).record
        return backend

    def notify(self, hook_name: str, **arguments: Any) -> None:
        """Tell observers. What one of them raises is shown, once for each hook, and goes no further."""
        for implementation in self._implementations(hook_name):
            try:
                self._call(hook_name, implementation, arguments)
            except (Exception, SystemExit) as error:
                if (implementation.plugin_name, hook_name) not in self._reported:
                    self._reported.add((implementation.plugin_name, hook_name))
                    info = self._infos[implementation.plugin_name]
                    self._warn(f"plugin {info.name!r} ({info.source}) failed in {hook_name}: {describe(error, info)}")

    # --- loading --------------------------------------------------------------------------------------------------

    def _add(self, source: _Source) -> None:
        key, started = _key(source), time.perf_counter()
        self._infos[key] = _info(source, "active")
        try:
            if not contains(source.core, version_of("primus-core")):
                raise BrokenPlugin(
                    f"it is made for primus-core{source.core}, and {version_of('primus-core')} is installed "
                    f"(pip install -U primus-core {source.distribution})"
                )
            self._infos[key] = replace(self._infos[key], file=source.file or _file_of(source.entry))
            module = source.load()
            problems = tuple(self._problems(module, source))
            if problems:
                raise BrokenPlugin("; ".join(problems))
            self._pluggy.register(module, name=key)
        except BrokenPlugin as error:
            self._break(key, str(error), error)
        except (Exception, SystemExit) as error:
            self._break(key, describe(error, self._infos[key]), error)
        else:
            callers = self._pluggy.get_hookcallers(module) or []
            self._infos[key] = replace(self._infos[key], hooks=tuple(sorted(caller.name for caller in callers)))
            self._tell_deprecated(self._infos[key], callers)
        self._infos[key] = replace(self._infos[key], seconds=time.perf_counter() - started)

    def _tell_deprecated(self, info: PluginInfo, callers: Iterable[pluggy.HookCaller]) -> None:
        for caller in callers:
            deprecated = getattr(caller.spec.function, "deprecated", {}) if caller.spec else {}
            for implementation in caller.get_hookimpls() if deprecated else ():
                for argument in deprecated.keys() & set(implementation.argnames):
                    if implementation.plugin_name == _key(info):
                        self._warn(
                            f"plugin {info.name!r} ({info.source}): argument {argument!r} of hook {caller.name!r} is "
                            f"deprecated ({place_of(implementation.function)}): {deprecated[argument]}"
                        )

    def _add_file(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"{path}: no such file (--primusfile)")
        source = _Source("primusfile", "primusfile", str(path), "", lambda: _import_file(path), path.absolute())
        quiet, self._warn = self._warn, lambda message: None
        self._add(source)
        self._warn = quiet
        info = self._infos[_key(source)]
        if info.status == "broken":
            raise UserError(f"{path}: cannot be used as a primusfile: {info.error}")

    def _problems(self, module: Any, source: _Source) -> Iterable[str]:
        """Everything that is wrong with a plugin's hook implementations."""
        for attribute in dir(module):
            options = self._pluggy.parse_hookimpl_opts(module, attribute)
            value: Any = getattr(module, attribute, None)
            if options is None:
                own = getattr(value, "__module__", None) == getattr(module, "__name__", None)
                if attribute in self._known and own and inspect.isfunction(value):
                    yield f"{attribute!r} in {source.distribution} {source.version} ({place_of(value)}) lacks @hookimpl"
                continue
            name = options.get("specname") or attribute
            place = f"in {source.distribution} {source.version} ({place_of(value)})"
            if name not in self._known:
                if not options.get("optionalhook"):
                    yield f"unknown hook {name!r} {place}{did_you_mean(name, self._known)}"
                continue
            if options.get("wrapper") or options.get("hookwrapper"):
                yield f"hook {name!r} {place} is a wrapper: hooks of primus cannot be wrapped"
            known = getattr(self._pluggy.hook, name).spec.argnames
            there = f"it has {', '.join(known)}" if known else "it has none"
            for argument in inspect.signature(value).parameters:
                if argument not in known:
                    hint = did_you_mean(argument, known)
                    yield f"unknown argument {argument!r} of hook {name!r} {place}: {there}{hint}"

    def _break(self, key: str, reason: str, error: BaseException) -> None:
        """Take a plugin out, with all that it contributed so far."""
        if self._pluggy.has_plugin(key):
            self._pluggy.unregister(name=key)
        text = "".join(traceback.format_exception(error)) if error.__traceback__ else None
        if isinstance(error, BrokenPlugin):
            text = None
        info = self._infos[key] = replace(self._infos[key], status="broken", error=reason, traceback=text)
        for hook_name, cached in self._cache.items():
            self._cache[hook_name] = tuple(c for c in cached if _key(c.plugin) != key)
        self._warn(f"plugin {info.name!r} ({info.source}) is broken and left out: {reason}")

    def reject(self, contribution: Contribution[Any], reason: str) -> None:
        """Declare the plugin behind a contribution broken."""
        self._break(_key(contribution.plugin), f"{reason} ({contribution.place})", BrokenPlugin(reason))

    def _disabled(self, sources: Iterable[_Source], environ: Mapping[str, str]) -> set[str]:
        """Names of plugins and normal names of distributions that ``PRIMUS_DISABLE_PLUGINS`` names."""
        known = {name for source in sources for name in (normal(source.distribution), source.name)}
        disabled = set()
        for name in filter(None, map(str.strip, environ.get("PRIMUS_DISABLE_PLUGINS", "").split(","))):
            if name in known or normal(name) in known:
                disabled |= {name, normal(name)}
            else:
                self._warn(f"PRIMUS_DISABLE_PLUGINS: there is no plugin {name!r}{did_you_mean(name, known)}")
        return disabled

    # --- calling --------------------------------------------------------------------------------------------------

    def _implementations(self, hook_name: str) -> list[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook_name)
        return sorted(caller.get_hookimpls(), key=lambda h: 0 if h.tryfirst else 2 if h.trylast else 1)

    def _records(
        self, hook_name: str, implementation: pluggy.HookImpl, arguments: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        result = self._call(hook_name, implementation, arguments)
        if result is None and arguments:
            return ()
        if hook_name not in RECORDS:
            return (result,)
        if isinstance(result, str | RECORDS[hook_name]) or not isinstance(result, Iterable):
            raise BrokenPlugin(
                f"returned {type(result).__name__}, not an iterable of {RECORDS[hook_name].__name__}"
                f" ({place_of(implementation.function)})"
            )
        for value in result:
            if not isinstance(value, RECORDS[hook_name]):
                raise BrokenPlugin(
                    f"yielded {type(value).__name__}, not {RECORDS[hook_name].__name__}"
                    f" ({place_of(implementation.function)})"
                )
        return tuple(result)

    def _call(self, hook_name: str, implementation: pluggy.HookImpl, arguments: Mapping[str, Any]) -> Any:
        """One implementation's result; generators are run to their end, so that they fail here."""
        started = time.perf_counter()
        try:
            result = implementation.function(*(arguments[name] for name in implementation.argnames))
            single = str | Mapping | RECORDS.get(hook_name, str)  # records are tuples, too
            if isinstance(result, Iterable) and not isinstance(result, single):
                result = tuple(result)
        except BaseException as error:
            self._trace_call(hook_name, implementation, arguments, error, started)
            raise
        self._trace_call(hook_name, implementation, arguments, result, started)
        return result

    def _trace_call(
        self, hook_name: str, implementation: pluggy.HookImpl, arguments: Mapping[str, Any], result: Any, started: float
    ) -> None:
        if self._trace:
            info = self._infos[implementation.plugin_name]
            given = ", ".join(f"{name}={brief(value, name)}" for name, value in arguments.items())
            print(
                f"hook {hook_name}({given}): {info.name} ({info.source}) -> {brief(result)}"
                f"  [{(time.perf_counter() - started) * 1000:.1f} ms]",
                file=sys.stderr,
            )

    def _trace_before(
        self, hook_name: str, implementations: Iterable[pluggy.HookImpl], arguments: Mapping[str, Any]
    ) -> None:
        given = ", ".join(f"{name}={brief(value, name)}" for name, value in arguments.items())
        names = ", ".join(self._infos[h.plugin_name].name for h in implementations)
        print(f"hook {hook_name}({given}): {names or 'no implementation'}", file=sys.stderr)

    def _trace_after(self, outcome: Any, hook_name: str, implementations: Any, arguments: Any) -> None:
        shown = brief(outcome.excinfo[1] if outcome.excinfo else outcome.get_result())
        print(f"hook {hook_name} -> {shown}", file=sys.stderr)

    def _single(self, hook_name: str, name: str, same: list[Contribution[Any]]) -> Contribution[Any]:
        if len(same) == 1:
            return same[0]
        raise EnvironmentFault(self._conflict(hook_name, name, same))

    def _conflict(self, hook_name: str, name: str, same: Iterable[Contribution[Any]]) -> str:
        sides = " and by ".join(contribution.plugin.source for contribution in same)
        names = " or ".join(sorted({c.plugin.name for c in same} - {CORE}))
        return (
            f"Conflict: {kind_of(hook_name)} {name!r} is provided by {sides}; "
            f"disable one with PRIMUS_DISABLE_PLUGINS={names}"
        )

    def _suspects(self) -> str:
        names = [f"{info.name!r} ({info.source})" for info in self.broken]
        return f"; broken and left out: {', '.join(names)} (see: primus plugins list)" if names else ""


def kind_of(hook_name: str) -> str:
    """``primus_metric_sinks`` -> ``metric sink``."""
    return re.sub(r"(?<=ch)es$|s$", "", hook_name.removeprefix("primus_")).replace("_", " ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def version_of(distribution: str) -> str:
    """The installed version of a distribution; empty if it is not installed."""
    return distributions.version(distribution) or ""


def _grouped(contributions: Iterable[Contribution[Any]]) -> dict[str, list[Contribution[Any]]]:
    return _group(contributions, lambda record: str(record.name))


def _models_by_name(contributions: Iterable[Contribution[Any]]) -> dict[str, list[Contribution[Any]]]:
    return _group(contributions, lambda record: f"{record.backend}/{record.name}")


def _group(contributions: Iterable[Contribution[Any]], key: Callable[[Any], str]) -> dict[str, list[Contribution[Any]]]:
    grouped: dict[str, list[Contribution[Any]]] = {}
    for contribution in contributions:
        grouped.setdefault(key(contribution.record), []).append(contribution)
    return grouped


def _sources() -> Iterator[_Source]:
    """Entry points of the group, one distribution at a time: a malformed file spoils its own distribution only."""
    seen: set[str] = set()
    for distribution in distributions.installed():
        if not distribution.has_entry_points(PROJECT):
            continue
        name, version = distribution.name or "unknown", distribution.version
        if normal(name) in seen:
            continue  # shadowed by one earlier on the path
        seen.add(normal(name))
        try:
            entries = distribution.entry_points(PROJECT)
        except ValueError as error:
            yield _Source(name.removeprefix("primus-"), "", name, version, partial(_malformed, error))
        else:
            core = core_versions(distribution.requires)
            for entry, value in entries:
                yield _Source(entry, value, name, version, partial(load_entry_point, value), core=core)


def _malformed(error: Exception) -> NoReturn:
    raise BrokenPlugin(f"its entry_points.txt is malformed: {error}")


def _info(source: _Source, status: Any) -> PluginInfo:
    return PluginInfo(
        name=source.name, distribution=source.distribution, version=source.version, entry=source.entry, status=status
    )


def _key(source: _Source | PluginInfo) -> str:
    return f"{source.distribution}:{source.name}"


def _file_of(entry: str) -> Path | None:
    spec = importlib.util.find_spec(entry.partition(":")[0]) if entry else None
    return Path(spec.origin) if spec and spec.origin else None


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("primusfile", path)
    if spec is None or spec.loader is None:
        raise BrokenPlugin("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["primusfile"] = module
    spec.loader.exec_module(module)
    return module


def _to_stderr(message: str) -> None:
    print(f"primus: {message}", file=sys.stderr)
