"""Whether a backend can run in this Python environment and on this platform, from distributions' metadata alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from primus_core.plugins.manager import version_of
from primus_core.plugins.records import Backend


@dataclass(frozen=True, kw_only=True)
class Need:
    """A distribution, the version that is installed (empty: none) and the tested range."""

    distribution: str
    installed: str
    tested: str

    @property
    def problem(self) -> str | None:
        from packaging.specifiers import SpecifierSet

        if not self.installed:
            return f"{self.distribution} is not installed"
        if not SpecifierSet(self.tested).contains(self.installed, prereleases=True):
            return f"{self.distribution} {self.installed} is outside of the tested range {self.tested}"
        return None


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """What a backend needs and what is there. ``reasons`` is empty if it can run here."""

    backend: Backend
    engine: Need
    requires: tuple[Need, ...]
    optional: tuple[Need, ...]
    reasons: tuple[str, ...]

    @property
    def fixable(self) -> bool:
        """Whether installing something helps."""
        return any(need.problem for need in (self.engine, *self.requires))


def readiness(backend: Backend, platform: str | None) -> Readiness:
    """Compare a backend's needs with this environment; ``platform`` None leaves the hardware out."""
    engine = _need(backend.engine, backend.engine_versions)
    requires = tuple(_need(name, tested) for name, tested in backend.requires.items())

    def reasons() -> Iterator[str]:
        if platform is not None and platform not in backend.platforms:
            yield f"it runs on {', '.join(backend.platforms)}, and this machine is {platform}"
        yield from (problem for need in (engine, *requires) if (problem := need.problem))

    return Readiness(
        backend=backend,
        engine=engine,
        requires=requires,
        optional=tuple(_need(name, "") for name in backend.optional),
        reasons=tuple(reasons()),
    )


def _need(distribution: str, tested: str) -> Need:
    """Of several distributions of one module, ``a | b``, the first that is installed; else the first."""
    names = [name.strip() for name in distribution.split("|")]
    name = next(filter(version_of, names), names[0])
    return Need(distribution=name, installed=version_of(name), tested=tested)
