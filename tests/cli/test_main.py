from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_core.cli.main import main

pytestmark = pytest.mark.usefixtures("echo")


def told(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_without_words_it_shows_help(site):
    result = site.primus()
    assert result.returncode == 0
    assert "Train a model" in result.stdout
    assert "direct" in result.stdout.partition("Launchers:")[2]
    assert "Say what was said" in result.stdout.partition("Commands of plugins:")[2]


def test_version(site):
    assert site.primus("--version").stdout == f"primus {version('primus-core')}\n"


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["doctor"], ["train", "pretrain", "--help"]])
def test_heavy_packages_are_not_imported(site, words):
    code = (
        "import sys\nfrom primus_core.cli.main import main\n"
        f"main({words!r})\n"
        "heavy = {'torch', 'numpy', 'rich', 'megatron', 'transformers', 'tokenizers', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_commands_are_imported_only_when_called(site):
    result = site.primus("lost")
    assert result.returncode == 3
    assert result.stderr == (
        "primus: plugin 'echo' (primus-echo 1.0): cannot load 'surely_not_there:lost': "
        "ModuleNotFoundError: No module named 'surely_not_there'\n"
    )
    assert "Not there" in site.primus("--help").stdout


def test_a_command_that_starts_workers_finds_the_default_launcher(site):
    chain = told(site.primus("echo", "--a", "b"))["chain"]
    assert [(name, argv) for name, _, argv in chain] == [("direct", ["echo", "--a", "b"])]
    assert chain == told(site.primus("direct", "--", "echo", "--a", "b"))["chain"]


def test_launchers_nest_and_keep_their_options_apart(site):
    words = ["wrap", "--size", "2", "--env", "A=1", "--", "direct", "--nproc", "3", "--", "echo", "--", "x", "--"]
    (outer, outer_options, outer_argv), (inner, inner_options, inner_argv) = told(site.primus(*words))["chain"]
    assert (outer, outer_options, outer_argv) == ("wrap", {"size": 2, "env": ["A=1"]}, words[6:])
    assert (inner, inner_options["nproc_per_node"], inner_argv) == ("direct", 3, words[10:])


@pytest.mark.parametrize("words", [["--dry-run", "--debug", "echo"], ["wrap", "--dry-run", "--debug", "--", "echo"]])
def test_global_options_stand_in_front_or_with_a_launcher(site, words):
    seen = told(site.primus(*words))
    assert seen["dry_run"] and seen["debug"]
    assert "dry_run" not in seen["chain"][0][1]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text() | st.sampled_from(["--", "-", "--help", "-h", "a b", "$HOME;x", "é\n'\"", "--x=1"])))
@pytest.mark.parametrize("front", [[], ["wrap", "--"], ["wrap", "--size", "1", "--", "direct", "--"]])
def test_words_survive_as_they_are(site, front, words):
    assert main([*front, "echo", *words]) == 0
    from primus_echo import seen

    assert seen.pop()[-1][2] == ("echo", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "no such command 'trian'; did you mean 'train'?"),
        (["direct", "--", "trian"], "no such command 'trian'; did you mean 'train'?"),
        (
            ["wrap", "echo"],
            "unexpected word 'echo'; the command to run stands behind '--', as in: primus wrap -- train",
        ),
        (["wrap"], "nothing to run; as in: primus wrap -- train"),
        (["wrap", "--"], "nothing to run"),
        (["wrap", "--sise", "1", "--", "echo"], "No such option"),
        (["wrap", "--size", "x", "--", "echo"], "'x' is not a valid integer"),
        (["wrap", "--", "five"], "'five' starts no workers: run it without a launcher, as 'primus five'"),
        (["--nonsense", "echo"], "No such option"),
    ],
)
def test_usage_errors_exit_with_2_and_say_what_to_write(site, words, message):
    result = site.primus(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("user", 2, "primus: wrong words\n"),
        ("config", 2, "x.yaml:2:1: a\nx.yaml:3:1: b\n"),
        ("environment", 3, "primus: no GPU\n"),
        ("training", 1, "primus: rank 1 died\n"),
        ("hang", 4, "primus: rank 2 hangs\n"),
        ("interrupt", 130, ""),
        ("usage", 2, None),
        ("file", 2, None),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_no_traceback(what, code, message, capsys):
    assert main(["fail", what]) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    if message is not None:
        assert shown == message


def test_a_bug_names_its_plugin_and_the_way_to_the_traceback(echo, capsys):
    assert main(["fail", "bug"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"primus: ZeroDivisionError: division by zero ({echo}:")
    assert "This is a bug of plugin 'echo' (primus-echo 1.0); run it again with --debug" in shown
    assert main(["--debug", "fail", "bug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_number_that_a_command_returns_is_the_exit_code():
    assert main(["five"]) == 4


def test_a_reader_that_goes_away_is_no_error(site):
    program = str(Path(sys.executable).parent / "primus")
    process = subprocess.Popen(
        [program, "many"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": str(site.folder)}
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (141, b"")
    process.stderr.close()


def test_a_full_disk_is_no_bug():
    program = str(Path(sys.executable).parent / "primus")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [program, "plugins", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (result.returncode, result.stderr) == (3, "primus: cannot write: No space left on device\n")


def test_a_path_that_cannot_be_is_no_bug(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["data", "prepare", "pydoc", "--train-tokenizer", "300", "--output", f"{tmp_path}/file/x/y"]) == 3
    assert capsys.readouterr().err == f"primus: {tmp_path}/file/x/y.work: Not a directory\n"


def test_a_broken_plugin_is_one_line_unless_it_is_what_was_asked_for(site):
    bad = site.install("primus-bad", "import surely_not_there")
    reason = "ModuleNotFoundError: No module named 'surely_not_there'"
    result = site.primus("five")
    assert result.returncode == 4
    assert result.stderr.startswith(f"primus: plugin 'bad' (primus-bad 1.0) is broken and left out: {reason} ({bad}:")
    assert result.stderr.count("\n") == 1
    result = site.primus("bad")
    assert result.returncode == 3
    assert f"plugin 'bad' (primus-bad 1.0) is broken: {reason}" in result.stderr


def test_commands_of_the_core_cannot_be_replaced(site):
    site.install(
        "primus-bold", "@hookimpl\ndef primus_commands(): yield Command(name='train', summary='', command='a:b')"
    )
    result = site.primus("train", "--help")
    assert result.returncode == 0
    assert "Conflict: command 'train' belongs to the core and cannot be replaced" in result.stderr


def test_two_plugins_with_one_command_are_a_conflict_only_for_who_calls_it(site):
    for name in ("a", "b"):
        source = f"@hookimpl\ndef primus_commands(): yield Command(name='tune', summary='', command='{name}:b')"
        site.install(f"primus-{name}", source)
    message = "Conflict: command 'tune' is provided by primus-a 1.0 and by primus-b 1.0"
    assert site.primus("five").returncode == 4
    assert message in " ".join(site.primus("--help").stdout.split())
    result = site.primus("tune")
    assert result.returncode == 3
    assert message in result.stderr


def test_a_primusfile_may_add_a_command(site, tmp_path):
    file = tmp_path / "primusfile.py"
    file.write_text(
        "import click\nfrom primus_core.plugins import hookimpl\nfrom primus_core.plugins.records import Command\n"
        "@click.command()\ndef hello():\n    click.echo('hello')\n"
        "@hookimpl\ndef primus_commands():\n    yield Command(name='hello', summary='', command='primusfile:hello')\n"
    )
    assert site.primus("--primusfile", str(file), "hello").stdout == "hello\n"
    result = site.primus("--primusfile", "nowhere.py", "hello")
    assert (result.returncode, result.stderr) == (2, "primus: nowhere.py: no such file (--primusfile)\n")


def test_traced_calls_go_to_stderr(site):
    result = site.primus("five", PRIMUS_TRACE_HOOKS="1")
    assert "hook primus_commands(): echo (primus-echo 1.0) -> [Command(name='echo'" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "completed"),
    [("primus ec", "echo"), ("primus wrap --si", "--size"), ("primus plugins sh", "show"), ("primus nonsense x", None)],
)
def test_completion_keeps_quiet_about_broken_plugins(site, words, completed):
    site.install("primus-bad", "raise ValueError")
    environ = {"_PRIMUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = site.primus(**environ)
    assert (result.stdout.strip(), result.stderr) == (f"plain,{completed}" if completed else "", "")
