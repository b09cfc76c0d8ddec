from __future__ import annotations

import json

SOURCE = """
    @hookimpl
    def primus_backends():
        yield backend("good")
"""


def test_list_shows_every_plugin_in_its_state(site):
    site.install("primus-good", SOURCE, version="2.0")
    site.install("primus-off", "raise ValueError")
    site.install("primus-bad", "raise ValueError('no way')")
    site.install("primus-late", "@hookimpl\ndef primus_models():\n    yield 1")
    result = site.primus("plugins", "list", PRIMUS_DISABLE_PLUGINS="off")
    assert result.returncode == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["core"].split()[1:3] == ["primus-core", json.loads(core_version(site))]
    assert lines["good"].split() == ["good", "primus-good", "2.0", "active", "backends"]
    assert lines["off"].split() == ["off", "primus-off", "1.0", "disabled"]
    assert "broken" in lines["bad"] and "ValueError: no way" in lines["bad"]
    assert "broken" in lines["late"] and "yielded int, not Model" in lines["late"]


def core_version(site) -> str:
    rows = json.loads(site.primus("plugins", "list", "--json").stdout)
    return json.dumps(next(row["version"] for row in rows if row["name"] == "core"))


def test_time_is_sorted_slowest_first(site):
    site.install("primus-slow", "import time\ntime.sleep(0.2)" + SOURCE.replace("\n    ", "\n"))
    rows = site.primus("plugins", "list", "--time").stdout.splitlines()
    assert rows[0].split() == ["name", "distribution", "status", "ms", "hooks"]
    assert rows[1].split()[0] == "slow" and float(rows[1].split()[4]) > 200


def test_conflicts_are_named(site):
    site.install("primus-a", SOURCE)
    site.install("primus-b", SOURCE)
    assert "Conflict: backend 'good' is provided by primus-a 1.0 and" in site.primus("plugins", "list").stderr


def test_show_tells_what_comes_from_where(site):
    file = site.install("primus-good", SOURCE)
    text = site.primus("plugins", "show", "primus-good").stdout
    assert str(file) in text
    line = file.read_text().splitlines().index("@hookimpl") + 1
    assert f"backend  good  Good  {file}:{line}" in text
    (row,) = json.loads(site.primus("plugins", "show", "good", "--json").stdout)
    assert row["contributions"] == [{"hook": "primus_backends", "name": "good", "place": f"{file}:{line}"}]


def test_kinds_have_their_singular(site):
    site.install(
        "primus-good",
        """
        @hookimpl
        def primus_patches():
            yield Patch(name="good.one", reason="x", backend="toy", engine_versions=">=1",
                        target="toy:one", replacement="good:two")
        """,
    )
    assert "    patch  good.one" in site.primus("plugins", "show", "good").stdout


def test_show_has_the_whole_error_of_a_broken_plugin(site):
    site.install("primus-bad", "def deep():\n    raise ValueError('no way')\n\ndeep()")
    text = site.primus("plugins", "show", "bad").stdout
    assert "Traceback" in text and "in deep" in text and "ValueError: no way" in text


def test_show_of_an_unknown_name_suggests(site):
    site.install("primus-good", SOURCE)
    result = site.primus("plugins", "show", "goood")
    assert result.returncode == 2
    assert result.stderr == "primus: no plugin 'goood' (see: primus plugins list); did you mean 'good'?\n"
