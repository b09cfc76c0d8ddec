from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from primus_core.errors import ExitCode
from primus_core.launch.plan import Plan, PlanFile
from primus_core.launch.supervise import carry_out
from primus_core.plugins.records import EnvVar

STRAY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("stray", "w").write(str(child.pid))
print(os.environ["T_X"], open(sys.argv[1]).read(), flush=True)
sys.exit(int(sys.argv[2]))
"""


def plan(attempt: Path, code: int) -> Plan:
    file = PlanFile(path=attempt / "deep/file.txt", text="text")
    variable = EnvVar(name="T_X", value="value", origin="test")
    return Plan(argv=(sys.executable, "-c", STRAY, str(file.path), str(code)), env=(variable,), files=(file,))


def test_what_is_left_over_is_ended(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    assert carry_out(plan(tmp_path, 0), tmp_path, os.environ, said.append) == ExitCode.DONE
    assert capfd.readouterr().out == "value text\n"
    stray = Path(f"/proc/{Path('stray').read_text()}/stat")
    assert not stray.exists() or " Z " in stray.read_text()
    assert said == []
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["exit_code"] == 0
    assert result["root_cause"] is None


def test_failure_is_told_and_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    assert carry_out(plan(tmp_path, 5), tmp_path, os.environ, said.append) == ExitCode.TRAINING_FAILED
    assert said[0].startswith("the launcher ended with exit code 5, before any rank was there")
    assert json.loads((tmp_path / "result.json").read_text())["root_cause"] == said[0]


def test_a_result_that_cannot_be_written_changes_no_failure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").symlink_to("/dev/full")
    said: list[str] = []
    assert carry_out(plan(tmp_path, 5), tmp_path, os.environ, said.append) == ExitCode.TRAINING_FAILED
    assert said[1] == f"cannot write {tmp_path / 'result.json'}: No space left on device"
