"""Everything that is wrong with a resolved experiment, at once."""

from __future__ import annotations

from collections.abc import Iterator

from primus_core.config.capabilities import refusals
from primus_core.config.experiment import CheckContext, Experiment
from primus_core.config.schema import Schema, for_backend
from primus_core.errors import ConfigError, Problem
from primus_core.plugins import distributions
from primus_core.plugins.manager import PluginManager


def check(
    experiment: Experiment, context: CheckContext, plugins: PluginManager, *, values_only: bool = False
) -> tuple[Problem, ...]:
    """The notices about an experiment, those of its resolution included.

    Raises ``ConfigError`` with all errors: of the schema, of ``requires``, and of the plugins' own checks. Those may
    rely on types: they are left out while a value has the wrong one, and with ``values_only``.
    """
    backend = plugins.backend(experiment.backend)
    schema = for_backend(backend, context.installed.get(backend.engine))
    found = list(schema.wrong_values(experiment.config))
    if not found and not values_only:
        found += _refused(experiment, schema)
        found += refusals(experiment, backend, schema, context)
        contributions = plugins.contributions("primus_check_config", experiment=experiment, context=context)
        found += (contribution.record for contribution in contributions)
    found += (*schema.unknown_keys(experiment.config), *_missing_plugins(experiment))
    errors = {problem for problem in found if problem.severity == "error"}
    if errors:
        raise ConfigError(errors)
    notices = {*experiment.notices, *found, *_without_effect(experiment, schema)}
    return tuple(sorted(notices, key=lambda problem: problem.origin))


def _missing_plugins(experiment: Experiment) -> Iterator[Problem]:
    if experiment.requires is None:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for text, place in zip(experiment.requires.value, experiment.requires.items, strict=True):
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            yield Problem(place, f"requires: '{text}' is not a requirement such as primus-megatron>=0.1")
            continue
        version = distributions.version(wanted.name)
        if version is None:
            yield Problem(place, f"requires: {wanted.name} is not installed (pip install '{text}')")
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            yield Problem(place, f"requires: {text}, installed is {version} (pip install -U '{text}')")


def _refused(experiment: Experiment, schema: Schema) -> Iterator[Problem]:
    """Keys that ask for what the engine cannot do and what would change the model or its training."""
    for path, leaf in experiment.config.leaves():
        key = schema.key(path)
        if key is not None and key.refused and leaf.value is not None and leaf.value != key.default:
            yield Problem(leaf.origin, f"{key.name}: {key.refused}")


def _without_effect(experiment: Experiment, schema: Schema) -> Iterator[Problem]:
    """Notices for keys that the user set and that do nothing here."""
    if experiment.preset is None:
        return
    for path, leaf in experiment.config.leaves():
        key = schema.key(path)
        if key is not None and key.no_effect and leaf.value != key.default and experiment.by_user(leaf.origin):
            message = f"'{key.name}' does nothing here: {key.no_effect}"
            yield Problem(leaf.key, message, "notice")
