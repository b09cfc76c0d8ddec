"""What this plugin contributes. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable

from primus_core.plugins import hookimpl
from primus_core.plugins.records import Command


@hookimpl
def primus_commands() -> Iterable[Command]:
    yield Command(
        name="verify",
        summary="Whether an exported model computes what was trained",
        command="primus_eval.cli:verify",
    )
    yield Command(
        name="eval",
        summary="Score a model on tasks of the evaluation harness",
        command="primus_eval.cli:evaluate",
    )
    yield Command(name="chat", summary="Talk to a model", command="primus_eval.cli:chat")
    yield Command(
        name="data tasks",
        summary="Lay the data sets of tasks down, for primus eval without network",
        command="primus_eval.cli:tasks",
    )
