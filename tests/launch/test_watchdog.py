from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from primus_core.launch.watchdog import Hang, Standing, Watch, odd


def standing(rank: int, **known: object) -> Standing:
    facts: dict = {"phase": "forward", "step": 12, "age": 21.4, "host": "node", "pid": None}
    return Standing(rank=rank, **facts | known)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"step": 11, "phase": "data"}, "hang: rank 1 did not reach step 12: in data for 21 s"),
        ({"phase": "data"}, "hang: rank 1 did not finish step 12: in data for 21 s"),
        ({"step": None, "phase": "build"}, "hang: rank 1 did not begin to train: in build for 21 s"),
        ({"collectives": (4, 4)}, "hang: rank 1 did not finish step 12: in forward for 21 s"),
        (
            {"note": "its process is gone"},
            "hang: rank 1 did not finish step 12: in forward for 21 s, its process is gone",
        ),
    ],
)
def test_the_odd_rank_is_named(others, sentence, tmp_path):
    usual = {"collectives": (5, 4)} if "collectives" in others else {}
    ranks = (standing(0, **usual), standing(1, **others), standing(2, **usual))
    found = odd(ranks)
    assert [rank.rank for rank in found] == [1]
    assert next(Hang(ranks, tuple(found), 20).lines(tmp_path)) == sentence


def test_of_two_the_one_without_data_is_odd():
    assert [rank.rank for rank in odd((standing(0), standing(1, phase="data")))] == [1]


def test_nobody_is_odd_where_all_stand_at_one_place(tmp_path):
    ranks = (standing(0), standing(1))
    assert odd(ranks) == []
    first, *_, last = Hang(ranks, (), 20).lines(tmp_path)
    assert first == "hang: no rank made progress for 20 s, and all stand at the same place"
    assert last.split() == ["0,1", "12", "forward", "21", "s", "-", "node"]


def beat(attempt: Path, rank: int, step: int | None, phase: str = "forward") -> None:
    (attempt / "ranks").mkdir(exist_ok=True)
    state = {"rank": rank, "pid": 1, "host": "elsewhere", "phase": phase, "step": step, "time": time.time()}
    (attempt / f"ranks/rank-{rank}.json").write_text(json.dumps(state))


def test_one_rank_that_stands_still_is_noticed(tmp_path):
    watch = Watch(tmp_path, 0.2)
    for step in range(1, 4):
        beat(tmp_path, 0, step)
        beat(tmp_path, 1, 1)
        beat(tmp_path, 2, 1, "finished")
        assert watch.look() is None
        time.sleep(0.05)
    (tmp_path / "ranks/rank-1.json").touch()
    time.sleep(0.1)
    late = json.loads((tmp_path / "ranks/rank-1.json").read_text())
    beat(tmp_path, 0, 4)
    time.sleep(0.15)
    ranks = watch.look()
    assert ranks is not None
    assert [rank.rank for rank in ranks] == [0, 1]
    assert ranks[1].step == late["step"]


def test_a_failure_is_no_hang(tmp_path):
    watch = Watch(tmp_path, 0.01)
    beat(tmp_path, 0, 1)
    watch.look()
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors/rank-1.json").write_text("{}")
    time.sleep(0.05)
    assert watch.look() is None


def test_by_default_a_long_start_is_no_hang(tmp_path):
    watch = Watch(tmp_path, None)
    beat(tmp_path, 0, None, "build")
    assert watch.look() is None
    assert watch.at_start > 1e9


def test_a_start_has_more_time_than_a_step(tmp_path):
    watch = Watch(tmp_path, 0.01)
    beat(tmp_path, 0, None, "import")
    assert watch.look() is None
    time.sleep(0.05)
    assert watch.look() is None


def test_no_rank_at_all(tmp_path):
    watch = Watch(tmp_path, 0.01, at_start=0.01)
    time.sleep(0.05)
    assert watch.look() == ()
    assert list(Hang((), (), 5).lines(tmp_path)) == ["hang: no rank started within 5 s"]
