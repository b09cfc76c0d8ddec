"""Groups of the core that plugins add subcommands to."""

from __future__ import annotations

import click

from primus_core.cli.context import State
from primus_core.plugins.info import Contribution
from primus_core.plugins.records import Command


class OpenGroup(click.Group):
    """Takes in what plugins contribute as ``Command(name="<this group> <name>")``, imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._added(ctx)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        entry = None if own else self._added(ctx).get(name)
        if entry is None:
            return own
        command: click.Command = entry.load(entry.record.command)
        return command

    def _added(self, ctx: click.Context) -> dict[str, Contribution[Command]]:
        prefix = f"{self.name} "
        commands = ctx.ensure_object(State).plugins.named("primus_commands")
        return {name.removeprefix(prefix): entry for name, entry in commands.items() if name.startswith(prefix)}
