from __future__ import annotations

import time

from primus_core.run.heartbeat import Heartbeat, read_all


def test_last_state_is_there_at_once(tmp_path):
    beat = Heartbeat(tmp_path, 3, 8)
    assert read_all(tmp_path)[3]["phase"] == "start"
    beat.beat("a long name of a phase", 123456)
    beat.beat("save")
    state = read_all(tmp_path)[3]
    assert (state["phase"], state["step"]) == ("save", 123456)
    assert abs(state["time"] - time.time()) < 5


def test_unwritten_file_is_no_state(tmp_path):
    (tmp_path / "rank-0.json").touch()
    assert read_all(tmp_path) == {}
