"""The patches of one backend: what is needed, what fits the installed engine, and what was done.

No patch is applied to code that it was not written for, and none is left out silently.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from primus_core.errors import EnvironmentFault
from primus_core.patches.conditions import Context, parts, within
from primus_core.patches.fingerprint import Fingerprint, fingerprint
from primus_core.patches.places import Ledger, Place, TargetMissing, holders, loaded
from primus_core.plugins.manager import PluginManager, version_of
from primus_core.plugins.records import Backend, Patch, Phase, load

PHASES: tuple[Phase, ...] = ("import", "build", "train")

type Status = Literal["pending", "applied", "not needed", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a patch, with one sentence why.

    ``skipped`` is an optional patch that is needed and cannot be applied, ``failed`` a required one.
    """

    patch: Patch
    status: Status
    because: str

    def __str__(self) -> str:
        return f"{self.patch.name}: {self.because}"

    def row(self) -> dict[str, Any]:
        """Everything that is known about the patch and the decision, for JSON."""
        patch = self.patch
        return {
            "name": patch.name,
            "target": patch.target,
            "status": self.status,
            "because": self.because,
            "reason": patch.reason,
            "phase": patch.phase,
            "set": patch.set,
            "required": patch.required,
            "engine_versions": patch.engine_versions,
            "when": [words for words, _ in parts(patch.when, None)],
            "aliases": list(patch.aliases),
            "upstream": patch.upstream,
        }


class Unfit(Exception):
    """A patch cannot be applied to the engine as it is."""


class Registry:
    """All patches for one backend. ``version`` is the engine's, None where it is not installed."""

    def __init__(self, backend: Backend, patches: Iterable[Patch], version: str | None) -> None:
        self.backend = backend
        self.version = version
        self.patches = tuple(sorted(patches, key=lambda patch: PHASES.index(patch.phase)))
        self._decisions: dict[str, Decision] = {}
        _reject_mistakes(self.patches)

    @classmethod
    def of(cls, plugins: PluginManager, backend: Backend) -> Registry:
        """The registry of the installed plugins for the installed engine."""
        patches: list[Patch] = [entry.record for entry in plugins.named("primus_patches").values()]
        wanted = [patch for patch in patches if patch.backend == backend.name]
        return cls(backend, wanted, version_of(backend.engine) or None)

    def decide(self, context: Context | None) -> tuple[Decision, ...]:
        """What would be applied in a run (in any, where none is given), as far as one knows without the engine."""
        return self._together(self._decide(patch, context) for patch in self.patches)

    def apply(self, phase: Phase, run: Context) -> tuple[Decision, ...]:
        """Apply what a run needs in this phase and return what became of the phase's patches.

        Each patch is applied once in a process, however often this is called. Raises ``EnvironmentFault`` when a
        required patch cannot be applied; the first call does so for versions of all phases.
        """
        if not self._decisions:
            self._decisions = {decision.patch.name: decision for decision in self.decide(run)}
        self.require(self._decisions.values())
        members = [patch for patch in self.patches if patch.phase == phase]
        for group in _groups(members):
            pending = [patch for patch in group if self._decisions[patch.name].status == "pending"]
            self._decisions |= {each.patch.name: each for each in self._apply_together(pending, run)}
        self.require(self._decisions.values())
        return tuple(self._decisions[patch.name] for patch in members)

    def record(self) -> list[dict[str, Any]]:
        """All patches with what became of them, for the folder of the run."""
        undecided = {patch.name: Decision(patch, "pending", "no run has asked for it yet") for patch in self.patches}
        decisions = (undecided | self._decisions).values()
        return [decision.row() | {"engine_version": self.version} for decision in decisions]

    def check(self) -> tuple[Decision, ...]:
        """Compare every patch with the installed engine, importing what they target and changing nothing.

        ``pending`` means that the patch fits; conditions on a run's values are left open.
        """
        return self._together(self._check(patch) for patch in self.patches)

    def require(self, decisions: Iterable[Decision]) -> None:
        """Raise ``EnvironmentFault``, with what to install, if there is a failed one among the decisions."""
        failed = [decision for decision in decisions if decision.status == "failed"]
        if failed:
            raise EnvironmentFault(self._fault(failed))

    def update(self) -> tuple[Path, ...]:
        """Record the targets as they are now as those of the installed engine version; for authors of patches.

        Returns the files that were written. Raises ``EnvironmentFault`` for targets that cannot be found.
        """
        found: dict[Path, dict[str, Fingerprint]] = {}
        lost: list[Decision] = []
        for patch in self.patches:
            if patch.fingerprints and self._decide(patch, None).status == "pending":
                try:
                    mark = _mark(Place.find(patch.target))
                except Exception as error:  # whatever an engine's import may raise, it is shown
                    lost.append(Decision(patch, "failed", _sentence(error)))
                else:
                    found.setdefault(patch.fingerprints, {})[patch.name] = mark
        if lost:
            raise EnvironmentFault("\n".join(map(str, lost)))
        for file, marks in found.items():
            content = _read(file)
            for name, mark in marks.items():
                content.setdefault(name, {})[Version(self.version or "0").public] = asdict(mark)
            file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        return tuple(found)

    def _decide(self, patch: Patch, context: Context | None) -> Decision:
        unmet = [words for words, holds in parts(patch.when, self.version, context) if holds is False]
        if unmet:
            return Decision(patch, "not needed", f"only where {' and '.join(unmet)}")
        if self.version is None:
            return self._refuse(patch, f"{self.backend.engine} is not installed")
        if not within(self.version, patch.engine_versions):
            return self._refuse(patch, f"is for {self.backend.engine} {patch.engine_versions}, not {self.version}")
        return Decision(patch, "pending", f"is for this version of {self.backend.engine}")

    def _check(self, patch: Patch) -> Decision:
        decision = self._decide(patch, None)
        if decision.status != "pending":
            return decision
        try:
            fits = self._fit(patch, Place.find(patch.target))
            for alias in patch.aliases:
                Place.find(alias)
        except Exception as error:  # whatever an engine's import may raise, it is shown
            return self._refuse(patch, _sentence(error))
        return Decision(patch, "pending", fits)

    def _apply_together(self, members: list[Patch], run: Context) -> tuple[Decision, ...]:
        """Apply a set, or a patch that is alone: all of it, or nothing."""
        with ExitStack() as undo:
            done = []
            for patch in members:
                try:
                    done.append(self._apply(patch, run, undo))
                except Exception as error:  # an engine or a replacement may raise anything: it becomes the reason
                    against = self._refuse(patch, _sentence(error))
                    return self._together(
                        against if each is patch else Decision(each, "pending", "") for each in members
                    )
            undo.pop_all()
        return tuple(done)

    def _apply(self, patch: Patch, run: Context, undo: ExitStack) -> Decision:
        place = Place.find(patch.target)
        ledger = Ledger.of(place)
        if patch.name in ledger.patches:
            return Decision(patch, "applied", "was applied in this process before")
        fits = self._fit(patch, place)
        new = _replacement(patch, place.value, run)
        places = [place]
        for alias in filter(loaded, patch.aliases):
            places.append(Place.find(alias))
            if places[-1].value is not place.value and places[-1].value is not ledger.original:
                raise Unfit(f"{alias} does not hold the same object as its target")
        for where in places:
            where.put(new)
            undo.callback(where.restore)
        undo.callback(ledger.patches.remove, patch.name)
        ledger.patches.append(patch.name)
        return Decision(patch, "applied", fits + _left(patch, ledger.original))

    def _together(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """The decisions, where one that is against a patch counts for what is pending of its set."""
        decisions = tuple(decisions)
        culprits = {each.patch.set: each.patch.name for each in decisions if each.status in ("skipped", "failed")}
        culprits.pop(None, None)

        def judge(decision: Decision) -> Decision:
            culprit = culprits.get(decision.patch.set)
            if decision.status != "pending" or culprit is None:
                return decision
            sentence = f"belongs to the set {decision.patch.set}, of which {culprit} cannot be applied"
            return self._refuse(decision.patch, sentence)

        return tuple(map(judge, decisions))

    def _fit(self, patch: Patch, place: Place) -> str:
        """In which words the unpatched target is the one that the patch was written for; raises ``Unfit``."""
        if patch.fingerprints is None:
            return "its target has a stable interface"
        known = marks_of(patch)
        now = _mark(place)
        version = Version(self.version or "0").public
        if version in known:
            changed = known[version].difference(now)
            if changed:
                raise Unfit(f"its target is not that of {self.backend.engine} {version}: {changed}")
            return f"its target is that of {self.backend.engine} {version}"
        same = [other for other, mark in known.items() if not mark.difference(now)]
        if same:
            return f"its target has not changed since {self.backend.engine} {max(same, key=Version)}"
        if not known:
            raise Unfit("no fingerprint of its target is recorded")
        last = max(known, key=Version)
        raise Unfit(f"its target has changed since {self.backend.engine} {last}: {known[last].difference(now)}")

    def _refuse(self, patch: Patch, sentence: str) -> Decision:
        return Decision(patch, "failed" if patch.required else "skipped", sentence)

    def _fault(self, failed: list[Decision]) -> str:
        """Required patches that cannot be applied, and what to install."""
        supported = ", ".join(sorted({decision.patch.engine_versions for decision in failed}))
        return "\n".join(
            [
                f"{len(failed)} required patch{'es' * (len(failed) > 1)} of backend {self.backend.name} cannot be "
                f"applied to {self.backend.engine} {self.version or '(not installed)'} (supported: {supported}):",
                *(f"  {decision.patch.name} ({decision.patch.target}): {decision.because}" for decision in failed),
                "install versions of engine and plugin that belong together: "
                f"{self.backend.install or f"pip install '{self.backend.engine}{self.backend.engine_versions}'"}",
            ]
        )


def marks_of(patch: Patch) -> dict[str, Fingerprint]:
    """The recorded fingerprints of a patch's target by engine version."""
    if patch.fingerprints is None:
        return {}
    return {version: Fingerprint(**mark) for version, mark in _read(patch.fingerprints).get(patch.name, {}).items()}


def _read(file: Path) -> dict[str, dict[str, dict[str, str]]]:
    content: dict[str, dict[str, dict[str, str]]] = json.loads(file.read_text()) if file.exists() else {}
    return content


def _groups(patches: Iterable[Patch]) -> Iterable[list[Patch]]:
    """Sets as a whole where their first member stands; other patches alone."""
    groups: dict[str, list[Patch]] = {}
    for patch in patches:
        groups.setdefault(f"set {patch.set}" if patch.set else f"patch {patch.name}", []).append(patch)
    return groups.values()


def _reject_mistakes(patches: tuple[Patch, ...]) -> None:
    """What cannot be meant is a mistake of its plugin."""
    mistakes = [
        f"two patches are named {name}" for name, count in Counter(patch.name for patch in patches).items() if count > 1
    ]
    phases: dict[str, set[Phase]] = {}
    for patch in patches:
        if patch.set:
            phases.setdefault(patch.set, set()).add(patch.phase)
        for ref in (patch.target, *patch.aliases):
            if not all(ref.partition(":")[::2]):
                mistakes.append(f"patch {patch.name}: {ref!r} is not of the form module:attribute")
        for specifiers in (patch.engine_versions, patch.when.engine):
            try:
                SpecifierSet(specifiers)
            except InvalidSpecifier:
                mistakes.append(f"patch {patch.name}: {specifiers!r} is not a range of versions")
    mistakes += [f"the patches of set {name} have several phases" for name, found in phases.items() if len(found) > 1]
    if mistakes:
        raise EnvironmentFault("\n".join(mistakes))


def _replacement(patch: Patch, original: Any, run: Context) -> Any:
    make = load(patch.replacement) if isinstance(patch.replacement, str) else patch.replacement
    parameters = inspect.signature(make).parameters.values()
    takes = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    new = make(original, run) if len(takes) > 1 else make(original)
    if new is None:
        raise Unfit("its replacement function returned nothing")
    return new


def _left(patch: Patch, original: Any) -> str:
    """Where the engine still holds what was replaced."""
    left = list(holders(original, patch.target.partition(":")[0].partition(".")[0]))
    return f"; the original is still held by {', '.join(left)}" if left else ""


def _sentence(error: Exception) -> str:
    if isinstance(error, Unfit | TargetMissing):
        return str(error)
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{place}"


def _mark(place: Place) -> Fingerprint:
    return fingerprint(Ledger.of(place).original, engine=place.module.__name__.partition(".")[0])
