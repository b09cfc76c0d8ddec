"""Plugins for another core, and hooks that change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from primus_core.plugins import hookspecs
from primus_core.plugins.made_for import contains, core_versions
from primus_core.plugins.manager import PluginManager, version_of

CURRENT = version_of("primus-core")

_numbers = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
_bounds = st.tuples(st.sampled_from([">=", "<=", "<", ">", "==", "~=", "!="]), _numbers)
_versions = st.one_of(_numbers, _numbers.map(lambda text: f"{text}.dev3"), _numbers.map(lambda text: f"{text}rc1"))


@given(st.lists(_bounds, max_size=3), _versions)
def test_versions_compare_as_packaging_compares_them(bounds: list[tuple[str, str]], version: str) -> None:
    bounds = [(operator, text) for operator, text in bounds if operator != "~=" or "." in text]
    specifier = ",".join(operator + text for operator, text in bounds)
    assert contains(specifier, version) == SpecifierSet(specifier).contains(version, prereleases=True)


def test_the_core_is_found_among_requirements() -> None:
    assert core_versions(["torch>=2", "primus-core-extras>=9", "Primus_Core[data]<0.2,>=0.1; extra == 'x'"]) == (
        "<0.2,>=0.1"
    )
    assert core_versions(["primus-core (>=0.1)"]) == ">=0.1"
    assert core_versions(["primus-core"]) == core_versions(["torch"]) == ""


def test_a_plugin_for_another_core_is_named_and_left_out(site) -> None:
    fits = "@hookimpl\ndef primus_backends(): yield backend('fits')"
    for name, spec in (("new", ">=99"), ("old", "<0.0.1"), ("fits", f">={CURRENT}")):
        source = fits if name == "fits" else "raise ValueError('imported')"
        site.install(f"primus-{name}", source, version="3.4", requires=[f"primus-core{spec}"])
    plugins = site.load()
    assert plugins.backend("fits")
    assert [info.name for info in plugins.broken] == ["new", "old"]
    assert site.warnings == [
        f"plugin {name!r} (primus-{name} 3.4) is broken and left out: it is made for primus-core{spec}, "
        f"and {CURRENT} is installed (pip install -U primus-core primus-{name})"
        for name, spec in (("new", ">=99"), ("old", "<0.0.1"))
    ]


def test_an_argument_that_will_go_is_told_with_file_and_line(site, monkeypatch) -> None:
    monkeypatch.setattr(hookspecs.primus_run_failed, "deprecated", {"error": "use run.error"})
    file = site.install(
        "primus-late",
        """
        @hookimpl
        def primus_run_failed(run, error): pass
        @hookimpl
        def primus_run_finished(run): pass
        """,
    )
    site.install("primus-modern", "@hookimpl\ndef primus_run_failed(run): pass")
    plugins = site.load()
    line = file.read_text().splitlines().index("@hookimpl") + 1
    assert site.warnings == [
        "plugin 'late' (primus-late 1.0): argument 'error' of hook 'primus_run_failed' is deprecated "
        f"({file}:{line}): use run.error"
    ]
    assert not plugins.broken


def test_every_hook_says_since_when(site) -> None:
    specs = [value for name, value in vars(hookspecs).items() if name.startswith("primus_")]
    assert len(specs) > 15 and all(contains(f">={spec.since}", CURRENT) for spec in specs)
    assert isinstance(site.load(), PluginManager)
