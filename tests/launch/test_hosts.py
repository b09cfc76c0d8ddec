from __future__ import annotations

import pytest

from primus_core.launch.hosts import expand, many_tasks, node_of, topology

STEP = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "12345",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("n[08-11],login", "n08 n09 n10 n11 login"),
        ("rack[1-2]-node[1-2].x", "rack1-node1.x rack1-node2.x rack2-node1.x rack2-node2.x"),
        ("a,b[3,05]c", "a b3c b05c"),
        ("", ""),
    ],
)
def test_lists_of_names(text, names):
    assert expand(text) == tuple(names.split())


def test_topology_of_a_step():
    assert topology(STEP) == {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "22345"}
    assert topology(STEP | {"SLURM_STEP_NODELIST": "n1", "SLURM_NODEID": "0"}) == {"NNODES": "1", "NODE_RANK": "0"}
    assert topology({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}) == {}  # in a batch script, not in a step


def test_which_machine_this_is():
    assert node_of({}) == 0
    assert node_of(STEP) == 1
    assert node_of(STEP | {"NODE_RANK": "3"}) == 3


def test_one_task_for_each_machine():
    assert many_tasks(STEP) is None
    assert "4 tasks on 2 machines" in many_tasks(STEP | {"SLURM_STEP_NUM_TASKS": "4"})
