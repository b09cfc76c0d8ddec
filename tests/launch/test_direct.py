from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from primus_core.config.experiment import Experiment
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import ConfigError, Origin, UserError
from primus_core.launch import direct
from primus_core.launch.plan import LaunchRequest
from primus_core.plugins.records import Backend, Device, EnvVar

GPU = Device(name="GPU", arch="gfx942")


def tree(values: dict[str, Any]) -> Tree:
    place = Origin("x.yaml", 9, 3)
    return Tree(place, {name: Leaf(value, place, place) for name, value in values.items()})


def request(
    *,
    options: dict[str, Any] | None = None,
    launch: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    gpus: int = 0,
    defaults: tuple[EnvVar, ...] = (),
    notes: list[str] | None = None,
) -> LaunchRequest:
    experiment = Experiment(
        file=Path("x.yaml"),
        work_group="g",
        user_name="u",
        exp_name="e",
        workspace=Path("o"),
        module="pre_trainer",
        stage="pretrain",
        backend="toy",
        model=None,
        config=tree({}),
        launch=tree(launch or {}),
        env=tree(env or {}),
    )
    backend = Backend(
        name="toy", summary="", engine="toy", engine_versions="", trainer="x:y", schemas=Path(), presets=Path()
    )
    return LaunchRequest(
        argv=("train",),
        options=options or {},
        experiment=experiment,
        backend=backend,
        attempt=Path("/runs/0001"),
        environ=environ or {},
        platform="rocm" if gpus else "cpu",
        devices=(GPU,) * gpus if gpus else (Device(name="CPU", arch="x86_64"),),
        defaults=defaults,
        note=(notes if notes is not None else []).append,
    )


def environment(**given: Any) -> dict[str, EnvVar]:
    return {var.name: var for var in direct.plan(request(**given)).env}


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ({}, 1),
        ({"gpus": 8}, 8),
        ({"gpus": 8, "environ": {"GPUS_PER_NODE": "4"}}, 4),
        ({"gpus": 8, "environ": {"GPUS_PER_NODE": "4"}, "launch": {"nproc_per_node": 2}}, 2),
        ({"gpus": 8, "launch": {"nproc_per_node": 2}, "options": {"nproc_per_node": 3}}, 3),
        ({"gpus": 8, "environ": {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}}, 16),
    ],
)
def test_number_of_ranks(given, ranks):
    assert direct.plan(request(**given)).ranks == ranks


def test_one_machine_takes_a_free_port():
    words = direct.plan(request()).argv
    assert words[1:3] == ("-m", "torch.distributed.run")
    assert "--rdzv-endpoint=localhost:0" in words
    assert words[-2:] == ("--attempt", "/runs/0001")


def test_many_machines_meet_at_the_first():
    environ = {"NNODES": "4", "NODE_RANK": "3", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
    words = direct.plan(request(environ=environ)).argv
    assert {"--nnodes=4", "--node-rank=3", "--master-addr=node0", "--master-port=1234"} <= set(words)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environ": {"NNODES": "two"}}, "$NNODES: nnodes must be a whole number from 1, not 'two'"),
        ({"launch": {"nproc_per_node": 0}}, "x.yaml:9:3: nproc_per_node must be a whole number from 1, not 0"),
        ({"environ": {"MASTER_PORT": "80"}}, "$MASTER_PORT: master_port must be a whole number from 1024, not 80"),
        ({"environ": {"MASTER_PORT": "70000"}}, "$MASTER_PORT: master_port must be at most 65535, not 70000"),
        (
            {"options": {"nnodes": 2, "node_rank": 2, "master_addr": "n0"}},
            "command line, --node-rank: node_rank is 2, but there are 2 nodes: 0 to 1",
        ),
        ({"launch": {"nnodes": 2}}, "x.yaml:9:3: nnodes is 2: the others need master_addr, the name of machine 0"),
    ],
)
def test_numbers_that_do_not_go_together(given, message):
    with pytest.raises(ConfigError) as caught:
        direct.plan(request(**given))
    assert str(caught.value) == message


def test_all_wrong_numbers_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        direct.plan(request(environ={"NNODES": "x", "NODE_RANK": "-1", "GPUS_PER_NODE": "0"}))
    assert len(caught.value.problems) == 3


def test_settings_without_effect_are_named():
    notes: list[str] = []
    direct.plan(request(launch={"colour": 3}, notes=notes))
    assert notes == ["x.yaml:9:3: launch.colour does nothing with the direct launcher"]


DEFAULT = EnvVar(name="NAME", value="default", origin="a plugin")


@pytest.mark.parametrize(
    ("given", "value", "origin"),
    [
        ({}, "default", "a plugin"),
        ({"environ": {"NAME": "shell"}}, "shell", "your shell, before a plugin"),
        ({"environ": {"NAME": "shell"}, "env": {"NAME": "file"}}, "file", "x.yaml:9:3"),
        ({"env": {"NAME": "file"}, "options": {"env": ("NAME=line",)}}, "line", "command line, --env"),
        (
            {"env": {"NAME": "file"}, "options": {"env": ("NAME",)}, "environ": {"NAME": "shell"}},
            "shell",
            "command line, --env",
        ),
        ({"env": {"NAME": None}, "environ": {"NAME": "shell"}}, "shell", "your shell, named at x.yaml:9:3"),
        ({"options": {"env": ("NAME=a=b c",)}}, "a=b c", "command line, --env"),
    ],
)
def test_who_wins(given, value, origin):
    var = environment(defaults=(DEFAULT,), **given)["NAME"]
    assert (var.value, var.origin) == (value, origin)


def test_variables_of_the_shell_are_left_alone():
    assert "OTHER" not in environment(environ={"OTHER": "1"})


def test_names_without_values_must_be_set():
    with pytest.raises(UserError, match="--env NAME: your shell does not set it; write --env NAME=VALUE"):
        direct.plan(request(options={"env": ("NAME",)}))
    with pytest.raises(ConfigError, match=r"x.yaml:9:3: env.NAME has no value, and your shell does not set NAME"):
        direct.plan(request(env={"NAME": None}))
    with pytest.raises(UserError, match="not the name of a variable"):
        direct.plan(request(options={"env": ("A-B=1",)}))


def test_threads_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert environment(options={"nproc_per_node": 2})["OMP_NUM_THREADS"].value == "4"
    assert environment(gpus=8)["OMP_NUM_THREADS"].value == "1"


def test_secrets_are_known_by_name():
    found = environment(env={"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": "false"})
    assert found["HF_TOKEN"].secret
    assert not found["TOKENIZERS_PARALLELISM"].secret
