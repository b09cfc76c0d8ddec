from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_core.launch.plan import Plan, PlanFile
from primus_core.launch.script import render
from primus_core.plugins.records import EnvVar

SHOW = """import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith("T_")}]))"""
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
awkward = st.sampled_from(
    ["$HOME", "`id`", "a b", "'", '"', "\\", "*", "~", "!", "-n", "", "a\nb", "END_OF_FILE", "é$(x)"]
)
words = text | awkward


def paste(script: str) -> str:
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=st.lists(words, max_size=5), value=words, content=st.lists(words, max_size=4).map("\n".join))
def test_every_word_arrives_as_it_was(tmp_path: Path, argv, value, content):
    variable = EnvVar(name="T_X", value=value, origin="a\nb")
    file = PlanFile(path=tmp_path / "a b'c" / "file", text=content)
    file.path.unlink(missing_ok=True)
    shown = paste(render(Plan(argv=(sys.executable, "-c", SHOW, *argv), env=(variable,), files=(file,))))
    assert json.loads(shown) == [argv, {"T_X": value}]
    assert file.path.read_bytes().decode() == (content if content.endswith("\n") or not content else content + "\n")


def test_the_shell_stays_as_it_was_and_errors_stop():
    plan = Plan(argv=("false",), env=(EnvVar(name="T_X", value="1", origin="x"),))
    done = subprocess.run(["bash"], input=render(plan) + 'echo "$? [$T_X]"\n', capture_output=True, text=True)
    assert done.stdout == "1 []\n"
    unwritable = Plan(argv=("echo", "started"), files=(PlanFile(path=Path("/proc/none/file"), text="x"),))
    done = subprocess.run(["bash"], input=render(unwritable), capture_output=True, text=True)
    assert done.returncode != 0
    assert "started" not in done.stdout


def test_nothing_is_written_over(tmp_path):
    script = render(Plan(argv=("echo", "started"), files=(PlanFile(path=tmp_path / "file", text="x\n"),)))
    assert paste(script) == "started\n"
    assert subprocess.run(["bash"], input=script, capture_output=True, text=True).stdout == ""


def test_secrets_are_masked_everywhere():
    secret = EnvVar(name="T_TOKEN", value="sekret-value", origin="--env", secret=True)
    shown = render(Plan(argv=("echo", "x sekret-value", "other-secret"), env=(secret,)), ["other-secret"])
    assert "sekret" not in shown
    assert "other-secret" not in shown
    assert "# export T_TOKEN='***'" in shown


def test_what_is_set_inside_is_shown_and_not_set():
    inside = (
        EnvVar(name="T_X", value="a\n'b'", origin="rocm\ngfx950"),
        EnvVar(name="T_TOKEN", value="sekret-value", origin="x.yaml", secret=True),
    )
    script = render(Plan(argv=(sys.executable, "-c", SHOW), inside=inside))
    assert json.loads(paste(script)) == [[], {}]
    assert "# inside: T_TOKEN=***  # x.yaml\n" in script
    assert "  # rocm gfx950\n" in script
