"""The form of an experiment file: its own keys, apart from the parameters of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from primus_core.config.schema import schema_of
from primus_core.config.tree import Path
from primus_core.plugins.records import Stage

MODULES: Final[Mapping[str, Stage]] = {
    "pre_trainer": "pretrain",
    "post_trainer": "posttrain",
    "sft_trainer": "posttrain",
}
DEFAULTS: Final[Mapping[Stage, tuple[str, ...]]] = {
    "pretrain": ("pre_trainer", "pretrain_trainer"),
    "posttrain": ("post_trainer", "sft_trainer"),
}
"""Module defaults that a stage takes when the experiment names none: the first that the backend has."""

_LAUNCH: Final[Mapping[str, Mapping[str, Any]]] = {
    "nnodes": {"type": "int", "help": "machines"},
    "nproc_per_node": {"type": "int", "help": "workers on each machine"},
    "node_rank": {"type": "int", "help": "which of the machines this is, from 0"},
    "master_addr": {"type": "str", "help": "name or address of machine 0"},
    "master_port": {"type": "int", "help": "a free port there"},
    **{
        f"container.{name}": {"type": "str", "help": f"as --{name.replace('_', '-')} of the container launcher"}
        for name in (
            "image",
            "engine",
            "primus",
            "name",
            "network",
            "ipc",
            "shm_size",
            "user",
            "cpus",
            "memory",
            "gpus",
        )
    },
    **{
        f"container.{name}": {"type": "list", "items": "str", "help": f"each as --{name.replace('_', '-')}"}
        for name in ("volume", "device", "ulimit", "group_add", "cap_add", "security_opt")
    },
    "container.privileged": {"type": "bool", "help": "without any separation"},
    "hang_timeout": {
        "type": "float",
        "help": "seconds that a rank may stand still before the run is ended; 0: for ever",
    },
    "max_restarts": {"type": "int", "help": "times that torchrun starts the ranks again after a failure"},
    "restart": {"type": "int", "help": "times that the run is started again, as a new attempt, after a failure"},
    "on_bad_loss": {
        "type": "str",
        "choices": ["stop", "skip", "rollback"],
        "help": "what to do when the loss is not finite, or jumps",
    },
    "loss_spike": {"type": "float", "help": "a loss of more than so many times the usual one is bad"},
    "slurm": {"type": "mapping", "help": "options of srun and sbatch: {partition: gpu, time: '4:00:00'}"},
}

_MODULE: Final[Mapping[str, Mapping[str, Any]]] = {
    "framework": {"type": "str", "help": "the backend"},
    "config": {"type": "str", "nullable": True, "help": "module defaults; null: none, everything is written here"},
    "model": {"type": "str", "nullable": True, "help": "model preset"},
    "overrides": {"type": "mapping", "nullable": True, "help": "parameters of the engine"},
}

EXPERIMENT: Final = schema_of(
    {
        "work_group": {"type": "str", "help": "first part of the run's path"},
        "user_name": {"type": "str", "help": "second part of the run's path"},
        "exp_name": {"type": "str", "help": "third part of the run's path"},
        "workspace": {"type": "str", "help": "where runs are kept"},
        "env": {"type": "mapping", "nullable": True, "help": "environment of the workers"},
        "metrics": {"type": "mapping", "nullable": True, "help": "sinks of metrics and their options"},
        "platform": {"type": "mapping", "nullable": True, "help": "understood in old files; does nothing"},
        "requires": {"type": "list", "items": "str", "help": "plugins that must be installed: primus-megatron>=0.1"},
        **{f"launch.{name}": facts for name, facts in _LAUNCH.items()},
        **{f"modules.{module}.{name}": facts for module in MODULES for name, facts in _MODULE.items()},
    },
    engine="an experiment",
)

IDENTITY: Final = ("work_group", "user_name", "exp_name", "workspace")
TOP: Final = (*IDENTITY, "env", "launch", "metrics", "requires")
"""Keys of an experiment that can be set on the command line by their own names."""

USER: Final = ("work_group", "user_name", "workspace", "env", "launch", "metrics")
"""Keys that the user's own defaults file may hold."""

LEGACY: Final[Mapping[str, str]] = {
    "trainer_class": "the backend knows its trainer",
    "maxdiffusion_entrypoint": "the backend knows its entry point",
    "name": "modules are named by their key",
    "sink_level": "logs have no levels of their own per module",
}
"""Keys beside ``overrides`` in old files, and why they are not needed."""


def is_text(path: Path) -> bool:
    """Whether the value at a path of an experiment is text, whatever it looks like."""
    return path[0] == "env" or EXPERIMENT.is_text(path)
