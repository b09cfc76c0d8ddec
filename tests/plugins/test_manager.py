from __future__ import annotations

from pathlib import Path

import pytest

from primus_core.errors import EnvironmentFault, UserError
from primus_core.plugins.manager import PluginManager

GOOD = """
    @hookimpl
    def primus_backends():
        yield backend("good")
"""


def info(plugins: PluginManager, name: str):
    return next(each for each in plugins.infos if each.name == name)


def line_of(file: Path, text: str) -> str:
    lines = file.read_text().splitlines()
    return f"{file}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_a_plugin_contributes_under_its_distribution(site):
    file = site.install("primus-good", GOOD, version="2.1")
    plugins = site.load()
    assert plugins.backend("good").summary == "Good"
    contribution = plugins.named("primus_backends")["good"]
    assert contribution.plugin.source == "primus-good 2.1"
    assert contribution.place == line_of(file, "@hookimpl")
    assert info(plugins, "good").hooks == ("primus_backends",)
    assert info(plugins, "good").file == file
    assert site.warnings == []


def test_the_core_is_a_plugin_like_others(site):
    core = site.load().infos[0]
    assert (core.name, core.distribution, core.status) == ("core", "primus-core", "active")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ValueError('no way')", "ValueError: no way"),
        ("import surely_not_there", "ModuleNotFoundError: No module named 'surely_not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:  # raise", "SyntaxError: invalid syntax"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_broken_alone(site, source, error):
    bad = site.install("primus-bad", source)
    site.install("primus-good", GOOD)
    plugins = site.load()
    assert plugins.backend("good")
    broken = info(plugins, "bad")
    assert (broken.status, broken.error) == ("broken", f"{error} ({line_of(bad, source)})")
    assert broken.traceback is not None and error in broken.traceback
    assert site.warnings == [f"plugin 'bad' (primus-bad 1.0) is broken and left out: {broken.error}"]


def test_an_entry_point_to_nothing_is_broken(site):
    site.install("primus-bad", "x = 1").unlink()
    assert info(site.load(), "bad").error == "ModuleNotFoundError: No module named 'primus_bad'"


def test_the_place_of_an_error_is_in_the_plugin_even_if_a_library_raised(site):
    file = site.install("primus-bad", "import json\njson.loads('{')")
    assert line_of(file, "json.loads") in info(site.load(), "bad").error


def test_misspelled_hooks_and_arguments_are_all_named_with_suggestions(site):
    file = site.install(
        "primus-bad",
        """
        @hookimpl
        def primus_patchs():
            yield

        @hookimpl(specname="primus_run_startd")
        def begin(run):
            pass

        @hookimpl
        def primus_step_finished(run, stepp):
            pass

        @hookimpl
        def primus_models(run):
            yield

        def primus_backends():
            yield
        """,
        version="1.2",
    )
    error = info(site.load(), "bad").error
    at = f"in primus-bad 1.2 ({file}:"
    assert error is not None
    assert f"unknown hook 'primus_patchs' {at}" in error
    assert "did you mean 'primus_patches'?" in error
    assert "did you mean 'primus_run_started'?" in error
    assert f"unknown argument 'stepp' of hook 'primus_step_finished' {at}" in error
    assert "it has run, step, metrics; did you mean 'step'?" in error
    assert "unknown argument 'run' of hook 'primus_models'" in error and "it has none" in error
    assert f"'primus_backends' {at}{line_of(file, 'def primus_backends').rpartition(':')[2]}) lacks @hookimpl" in error


def test_hooks_that_a_later_core_may_have_are_accepted_when_marked_optional(site):
    site.install("primus-new", "@hookimpl(optionalhook=True)\ndef primus_teleport(): pass")
    assert info(site.load(), "new").status == "active"


def test_wrappers_are_refused(site):
    site.install("primus-bad", "@hookimpl(wrapper=True)\ndef primus_backends():\n    return (yield)")
    assert "cannot be wrapped" in info(site.load(), "bad").error


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("yield backend('bad')\n    1 / 0", "primus_backends: ZeroDivisionError: division by zero ({file}:"),
        ("yield {'name': 'bad'}", "primus_backends: yielded dict, not Backend ({file}:"),
        ("return backend('bad')", "primus_backends: returned Backend, not an iterable of Backend ({file}:"),
        ("return 'bad'", "primus_backends: returned str, not an iterable of Backend ({file}:"),
        ("yield Backend(name='bad')", "primus_backends: TypeError: Backend.__new__() missing"),
    ],
)
def test_a_plugin_that_fails_while_contributing_is_taken_out_whole(site, body, reason):
    launcher = "yield Launcher(name='rocket', summary='', plan='a:b', options='a:b')"
    file = site.install(
        "primus-bad",
        f"@hookimpl\ndef primus_launchers():\n    {launcher}\n\n@hookimpl\ndef primus_backends():\n    {body}\n",
    )
    site.install("primus-good", GOOD)
    plugins = site.load()
    assert "rocket" in plugins.named("primus_launchers")
    assert "bad" not in plugins.named("primus_backends") and "good" in plugins.named("primus_backends")
    assert "rocket" not in plugins.named("primus_launchers")
    assert info(plugins, "bad").error.startswith(reason.format(file=file))
    assert len(site.warnings) == 1


def test_two_plugins_with_one_backend_are_a_conflict_that_names_both(site):
    site.install("primus-a", "@hookimpl\ndef primus_backends(): yield backend('x')")
    site.install("primus-b", "@hookimpl\ndef primus_backends(): yield backend('x')", version="2.0")
    site.install("primus-good", GOOD)
    plugins = site.load()
    message = (
        "Conflict: backend 'x' is provided by primus-a 1.0 and by primus-b 2.0; "
        "disable one with PRIMUS_DISABLE_PLUGINS=a or b"
    )
    for ask in (lambda: plugins.named("primus_backends"), lambda: plugins.backend("x")):
        with pytest.raises(EnvironmentFault) as caught:
            ask()
        assert str(caught.value) == message
    assert plugins.conflicts() == (message,)
    assert plugins.backend("good")
    assert site.load({"PRIMUS_DISABLE_PLUGINS": "a"}).named("primus_backends")["x"].plugin.version == "2.0"


def test_models_are_told_apart_by_backend_and_name(site):
    source = "@hookimpl\ndef primus_models(): yield Model(backend='{}', name='m', preset=Path())"
    site.install("primus-a", source.format("x"))
    site.install("primus-b", source.format("y"))
    assert set(site.load().models()) == {("x", "m"), ("y", "m")}
    site.install("primus-c", source.format("y"))
    with pytest.raises(EnvironmentFault, match=r"model 'y/m' is provided by primus-b 1.0 and by primus-c 1.0"):
        site.load().models()


def test_malformed_metadata_spoils_its_own_distribution_only(site):
    site.install("primus-good", GOOD)
    site.install("primus-bad", GOOD)
    (site.folder / "primus_bad-1.0.dist-info/entry_points.txt").write_text("[primus]\nwhat is this\n")
    site.install("elsewhere")
    (site.folder / "elsewhere-1.0.dist-info/entry_points.txt").write_text("nonsense\n")
    site.install("primus-nameless", "x = 1")
    (site.folder / "primus_nameless-1.0.dist-info/METADATA").unlink()
    plugins = site.load()
    assert plugins.backend("good")
    assert "entry_points.txt is malformed" in info(plugins, "bad").error
    assert info(plugins, "nameless").source == "unknown"


@pytest.mark.parametrize("name", ["bad", "primus-bad", "Primus_Bad", " bad ,, "])
def test_disabled_plugins_are_not_even_imported(site, name):
    site.install("primus-bad", "raise ValueError")
    plugins = site.load({"PRIMUS_DISABLE_PLUGINS": name})
    assert info(plugins, "bad").status == "disabled"
    assert site.warnings == []
    with pytest.raises(EnvironmentFault, match="disabled by PRIMUS_DISABLE_PLUGINS"):
        plugins.backend("bad")


def test_disabling_what_is_not_there_gives_a_notice(site):
    site.install("primus-good", GOOD)
    site.load({"PRIMUS_DISABLE_PLUGINS": "goood,good"})
    assert site.warnings == ["PRIMUS_DISABLE_PLUGINS: there is no plugin 'goood'; did you mean 'good'?"]


def test_an_unknown_backend_is_answered_with_what_there_is(site):
    site.install("primus-good", GOOD)
    site.install("primus-bad", "raise ValueError('no')")
    with pytest.raises(UserError) as caught:
        site.load().backend("goood")
    assert "unknown backend 'goood' (installed: good" in str(caught.value)
    assert "broken and left out: 'bad' (primus-bad 1.0)" in str(caught.value)
    assert str(caught.value).endswith("did you mean 'good'?")


def test_a_backend_whose_plugin_is_broken_is_an_environment_fault_with_the_reason(site):
    site.install("primus-bad", "raise ValueError('no')", version="7.1")
    with pytest.raises(EnvironmentFault, match=r"plugin 'bad' \(primus-bad 7.1\) is broken: ValueError: no \(.*:\d+\)"):
        site.load().backend("bad")


def test_an_observer_that_fails_is_shown_once_and_stops_nobody(site):
    file = site.install(
        "primus-a",
        "@hookimpl\ndef primus_step_finished(step):\n    raise RuntimeError('oh')\n"
        "@hookimpl\ndef primus_run_finished():\n    raise SystemExit",
    )
    site.install("primus-b", "seen = []\n@hookimpl\ndef primus_step_finished(step, metrics):\n    seen.append(metrics)")
    plugins = site.load()
    for step in range(3):
        plugins.notify("primus_step_finished", run=None, step=step, metrics={"loss": step})
    plugins.notify("primus_run_finished", run=None)
    import primus_b

    assert [metrics["loss"] for metrics in primus_b.seen] == [0, 1, 2]
    where = line_of(file, "'oh'")
    assert site.warnings[0] == f"plugin 'a' (primus-a 1.0) failed in primus_step_finished: RuntimeError: oh ({where})"
    assert len(site.warnings) == 2
    assert info(plugins, "a").status == "active"


def test_an_interrupt_is_not_an_observers_affair(site):
    site.install("primus-a", "@hookimpl\ndef primus_run_finished(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.load().notify("primus_run_finished", run=None)


def test_hooks_with_arguments_stop_the_command_instead_of_changing_it_silently(site):
    site.install("primus-a", "@hookimpl\ndef primus_resolve_config(experiment):\n    return experiment['x']")
    plugins = site.load()
    assert [c.record for c in plugins.contributions("primus_resolve_config", experiment={"x": {"a": 1}})] == [{"a": 1}]
    assert plugins.contributions("primus_resolve_config", experiment={"x": None}) == ()
    with pytest.raises(
        EnvironmentFault, match=r"plugin 'a' \(primus-a 1.0\) failed in primus_resolve_config: KeyError"
    ):
        plugins.contributions("primus_resolve_config", experiment={})


def test_a_plugin_may_refuse_in_its_own_words(site):
    site.install("primus-a", "@hookimpl\ndef primus_check_config(experiment): raise UserError('never on Sundays')")
    with pytest.raises(UserError, match=r"^never on Sundays$"):
        site.load().contributions("primus_check_config", experiment=None, context=None)


def test_contributions_come_in_order_of_registration_unless_a_plugin_asks_otherwise(site):
    for name, options in (("a", "trylast=True"), ("b", ""), ("c", ""), ("d", "tryfirst=True")):
        source = f"@hookimpl({options})\ndef primus_datasets(): yield Dataset(name='{name}', summary='', read='')"
        site.install(f"primus-{name}", source)
    names = [c.record.name for c in site.load().contributions("primus_datasets") if c.plugin.name != "core"]
    assert names == ["d", "b", "c", "a"]


def test_tracing_shows_calls_but_no_secrets(site, capfd):
    site.install(
        "primus-a",
        """
        @hookimpl
        def primus_launch_env(request):
            yield EnvVar(name="NCCL_DEBUG", value="INFO", origin="a")
            yield EnvVar(name="WANDB_API_KEY", value="sekret", origin="a")
            yield EnvVar(name="HARMLESS", value="sekret", origin="a", secret=True)

        @hookimpl
        def primus_resolve_config(experiment):
            return {"wandb.api_key": "sekret", "lr": 1}

        @hookimpl
        def primus_run_finished(run):
            raise ValueError("sekret")
        """,
    )
    plugins = site.load({"PRIMUS_TRACE_HOOKS": "1"})
    request = type("Request", (dict,), {"platform": "cpu", "devices": ()})(
        environ={"HF_TOKEN": "sekret"}, argv=("--api_key", "sekret")
    )
    plugins.contributions("primus_launch_env", request=request)
    plugins.contributions("primus_resolve_config", experiment=None)
    plugins.notify("primus_run_finished", run=None)
    plugins.hook.primus_resolve_config(experiment=None)
    shown = capfd.readouterr().err
    assert "hook primus_launch_env(request=" in shown
    assert "a (primus-a 1.0) -> [EnvVar(NCCL_DEBUG='INFO', origin='a'), EnvVar(WANDB_API_KEY=***" in shown
    assert "raises ValueError" in shown
    assert "lr: 1" in shown
    assert "sekret" not in shown


def test_a_primusfile_implements_hooks_without_packaging(site, tmp_path):
    file = tmp_path / "primusfile.py"
    file.write_text(
        "from primus_core.plugins import hookimpl\nfrom primus_core.plugins.records import Dataset\n"
        "@hookimpl\ndef primus_datasets():\n    yield Dataset(name='mine', summary='', read='')\n"
    )
    plugins = site.load(primusfile=file)
    assert plugins.named("primus_datasets")["mine"].plugin.name == "primusfile"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no such file"),
        ("import surely_not_there", "No module named 'surely_not_there' ({file}:1)"),
        (
            "from primus_core.plugins import hookimpl\n@hookimpl\ndef primus_dataset(): ...",
            "did you mean 'primus_datasets'?",
        ),
    ],
)
def test_a_wrong_primusfile_is_the_users_error(site, tmp_path, text, reason):
    file = tmp_path / "primusfile.py"
    if text:
        file.write_text(text)
    with pytest.raises(UserError) as caught:
        site.load(primusfile=file)
    assert str(caught.value).startswith(f"{file}: ") and reason.format(file=file) in str(caught.value)
    assert site.warnings == []
