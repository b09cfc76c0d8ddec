"""What is told to be wrong, from what ranks saw."""

from __future__ import annotations

from copy import deepcopy

import pytest

from primus_preflight.table import lines
from primus_preflight.verdict import Limits, groups, problems

LIMITS = Limits(tolerance=0.2, free_disk=1e10, busy_memory=2 * 2**30, clock_skew=1.0)
NODES, LOCAL = 3, 2


def rank(number):
    node, local = divmod(number, LOCAL)
    return {
        "rank": number,
        "local_rank": local,
        "local_world_size": LOCAL,
        "host": f"node-{node}",
        "node": {"cpus": 96, "memory": 2**40, "free_memory": 2**39, "free_disk": 2**44, "locked_memory": None},
        "device": {"name": "H200", "count": LOCAL, "memory": 140 * 2**30, "free_memory": 139 * 2**30},
        "versions": {"torch": "2.13.0", "nccl": "2.29"},
        "distributions": {"primus-core": "0.1.0"},
        "shared": [],
        "write_rate": 1e9,
        "rates": {"gemm": 7e14, "copy": 4e12},
        "collectives": [
            {"test": "intra-allreduce", "bytes": 2**26, "seconds": 0.001, "factor": 1.0},
            {"test": "inter-ring-p2p", "bytes": 2**26, "seconds": 0.002, "factor": 1.0},
        ],
    }


@pytest.fixture
def ranks():
    return [rank(number) for number in range(NODES * LOCAL)]


def test_nothing_is_wrong_where_all_are_alike(ranks):
    assert problems(ranks, {"node-1": 0.01, "node-2": -0.2}, LIMITS) == []
    assert list(lines(ranks, {}, []))[-1] == "nothing is wrong"


CASES = {
    "node-1: 1 GPUs are visible, not 2": lambda r: r[2]["device"].update(count=1),
    "node-1 GPU 1: device H100, elsewhere H200": lambda r: r[3]["device"].update(name="H100"),
    "node-0 GPU 0: 40.0 GiB of its memory are in use already": lambda r: r[0]["device"].update(free_memory=100 * 2**30),
    "node-2: nccl 2.28, elsewhere 2.29": lambda r: r[4]["versions"].update(nccl="2.28"),
    "node-2: nccl not there, elsewhere 2.29": lambda r: r[4]["versions"].pop("nccl"),
    "node-1: primus-core 0.2.0, elsewhere 0.1.0": lambda r: r[2]["distributions"].update({"primus-core": "0.2.0"}),
    "node-1: the workspace has 1.0 GB left, less than 10": lambda r: r[2]["node"].update(free_disk=10**9),
    "node-2: /data is not shared": lambda r: r[4].update(shared=["/data is not shared"]),
    "node-2 GPU 1: gemm reaches 350 TFLOP/s, 50% less than the median": lambda r: r[5]["rates"].update(gemm=3.5e14),
    "node-1: intra-allreduce of 64 MiB reaches 16.78 GB/s, 75% less than the median": lambda r: r[3]["collectives"][
        0
    ].update(seconds=0.004),
    "node-0 GPU 1: inter-ring-p2p of 64 MiB reaches 16.78 GB/s, 50% less than the median": lambda r: r[1][
        "collectives"
    ][1].update(seconds=0.004),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_is_odd_is_named_with_its_place(ranks, sentence):
    changed = deepcopy(ranks)
    CASES[sentence](changed)
    limits = Limits(tolerance=0.2, free_disk=1e10, busy_memory=2 * 2**30, clock_skew=1.0, expected_gpus=LOCAL)
    found = problems(changed, {}, limits)
    assert found == [sentence]
    assert list(lines(changed, {}, found))[-2:] == ["1 problem:", f"  {sentence}"]


def test_clocks_and_gpus_that_nobody_expected(ranks):
    assert problems(ranks, {"node-1": 2.5}, LIMITS) == ["node-1: its clock is 2.50 s ahead"]
    ranks[4]["device"]["count"] = 7
    assert problems(ranks, {}, LIMITS) == ["node-2: visible GPUs 7, elsewhere 2"]


def test_of_two_devices_the_slower_is_named(ranks):
    two = ranks[:2]
    two[0]["rates"]["copy"] = 1e12
    assert problems(two, {}, LIMITS) == ["node-0 GPU 0: copy reaches 1000 GB/s, 75% less than the median"]


def test_slowest_rank_tells_the_time_of_a_collective(ranks):
    ranks[1]["collectives"][0]["seconds"] = 0.5
    row = next(row for row in groups(ranks) if row["where"] == "node-0" and row["test"] == "intra-allreduce")
    assert row["seconds"] == 0.5
    assert row["bus"] == 2**26 / 0.5


def test_table_stays_short_on_many_nodes():
    many = [rank(number) for number in range(400)]
    assert sum("p2p" in line for line in lines(many, {}, [])) == 1
