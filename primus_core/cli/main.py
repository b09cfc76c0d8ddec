"""The command line: a lazy group of commands and launchers, and what becomes of errors.

``primus [options] LAUNCHER [its options] -- [LAUNCHER ... --] COMMAND ...``
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from primus_core.cli.context import Invocation, State
from primus_core.errors import ConfigError, EnvironmentFault, ExitCode, PrimusError
from primus_core.plugins.info import Contribution, describe
from primus_core.plugins.manager import CORE, PluginManager, did_you_mean, version_of
from primus_core.plugins.records import Command, Launcher

DEFAULT_LAUNCHER = "direct"
INTERRUPTED = 130
BROKEN_PIPE = 141

Entry = Contribution[Command] | Contribution[Launcher]


class Primus(click.Group):
    """The root: launchers and commands of all plugins, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_entries(ctx))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = self.entry(ctx, name)
        if entry is None:
            return None
        if isinstance(entry.record, Launcher):
            return launcher_command(entry)
        command = entry.load(entry.record.command)
        if not isinstance(command, click.Command):
            raise EnvironmentFault(
                f"plugin {entry.plugin.name!r} ({entry.plugin.source}): {entry.record.command!r} is no click.Command"
            )
        return command

    def entry(self, ctx: click.Context, name: str) -> Entry | None:
        """Who provides a command or launcher; an ``EnvironmentFault`` if two plugins claim the name."""
        same = _entries(ctx).get(name, [])
        if len(same) > 1:
            raise EnvironmentFault(_conflict(name, same))
        return same[0] if same else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, state = args[0], ctx.ensure_object(State)
        entry = self.entry(ctx, name)
        if entry is None:
            if ctx.resilient_parsing:
                return None, None, args
            if not name.startswith("-"):
                state.plugins.refuse_unusable("command", name)
            ctx.fail(f"no such command {name!r}{did_you_mean(name, _entries(ctx))}")
        launches = isinstance(entry.record, Launcher) or entry.record.launches
        if state.chain and not launches:
            ctx.fail(f"{name!r} starts no workers: run it without a launcher, as 'primus {name}'")
        if not state.chain and isinstance(entry.record, Command) and entry.record.launches:
            launcher = launcher_command(state.plugins.select("primus_launchers", DEFAULT_LAUNCHER))
            state.chain = (Invocation(launcher=DEFAULT_LAUNCHER, options=launcher.defaults(), argv=tuple(args)),)
        return name, self.get_command(ctx, name), args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Commands": [], "Launchers": [], "Commands of plugins": []}
        for name, same in _entries(ctx).items():
            entry = same[0]
            kind = "Launchers" if isinstance(entry.record, Launcher) else "Commands"
            if kind == "Commands" and entry.plugin.name != CORE:
                kind = "Commands of plugins"
            sections[kind].append((name, _conflict(name, same) if len(same) > 1 else entry.record.summary))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class LauncherCommand(click.Command):
    """A launcher: its own options, then ``--``, then words that are kept as they are."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND ..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[__name__] = tuple(args[end + 1 :])
        super().parse_args(ctx, args[:end])
        if ctx.resilient_parsing:
            return []
        if ctx.ignore_unknown_options:
            ctx.params["extra"], ctx.args = tuple(ctx.args), []
        if ctx.args:
            ctx.fail(
                f"unexpected word {ctx.args[0]!r}; the command to run stands behind '--', "
                f"as in: {ctx.command_path} -- train pretrain --config FILE"
            )
        if end + 1 >= len(args):
            ctx.fail(f"nothing to run; as in: {ctx.command_path} -- train pretrain --config FILE")
        return []

    def invoke(self, ctx: click.Context) -> Any:
        state, words = ctx.ensure_object(State), ctx.meta[__name__]
        name = str(ctx.info_name)
        state.debug |= bool(ctx.params.get("debug"))
        state.dry_run |= bool(ctx.params.get("dry_run"))
        state.chain = (*state.chain, Invocation(launcher=name, options=_own(ctx.params), argv=words))
        with cli.make_context(f"{ctx.command_path} --", list(words), obj=state) as inner:
            return cli.invoke(inner)

    def defaults(self) -> dict[str, Any]:
        """The values of its options when none is given."""
        plain = click.Command(self.name, params=self.params)
        return _own(plain.make_context(str(self.name), []).params)


def launcher_command(launcher: Contribution[Launcher]) -> LauncherCommand:
    """The click command of a launcher record."""
    options: list[click.Parameter] = launcher.load(launcher.record.options)
    taken = {word for option in options for word in option.opts}
    common = [option for option in _common_options() if not taken & set(option.opts)]
    settings: dict[str, Any] = {"allow_extra_args": True}
    if launcher.record.extra:  # without -h: in the middle of "-whost1" it would be found, too
        settings |= {"ignore_unknown_options": True, "help_option_names": ["--help"]}
    return LauncherCommand(
        launcher.record.name,
        params=[*options, *common],
        help=launcher.record.summary + ".",
        context_settings=settings,
    )


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """A launcher's own options, without those that the core adds to all."""
    return {name: value for name, value in values.items() if name not in ("debug", "dry_run")}


def _common_options() -> list[click.Option]:
    return [
        click.Option(["--dry-run"], is_flag=True, help="Print what would be done, and do nothing."),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks of errors."),
    ]


def _entries(ctx: click.Context) -> dict[str, list[Entry]]:
    """Commands and launchers by name. A plugin that claims a name of the core is taken out.

    Names of two words are subcommands, which their group knows.
    """
    plugins = ctx.ensure_object(State).plugins
    entries: dict[str, list[Entry]] = {}
    for entry in (*plugins.contributions("primus_commands"), *plugins.contributions("primus_launchers")):
        if " " in entry.record.name:
            continue
        entries.setdefault(entry.record.name, []).append(entry)
    for name, same in list(entries.items()):
        if len(same) > 1 and any(entry.plugin.name == CORE for entry in same):
            for entry in same:
                if entry.plugin.name != CORE:
                    plugins.reject(entry, f"Conflict: command {name!r} belongs to the core and cannot be replaced")
            return _entries(ctx)
    return entries


def _conflict(name: str, same: Sequence[Entry]) -> str:
    sides = " and by ".join(entry.plugin.source for entry in same)
    names = " or ".join(sorted({entry.plugin.name for entry in same}))
    return f"Conflict: command {name!r} is provided by {sides}; disable one with PRIMUS_DISABLE_PLUGINS={names}"


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(State), name, value)

    return store


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"primus {version_of('primus-core')}")
        ctx.exit()


cli = Primus(
    "primus",
    help="Train large models with any engine from one command line and one configuration language.",
    epilog="'primus train ...' is short for 'primus direct -- train ...'.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    params=[
        click.Option(["--debug"], is_flag=True, expose_value=False, callback=_set("debug"), is_eager=True,
                     help="Show tracebacks of errors."),
        click.Option(["--dry-run"], is_flag=True, expose_value=False, callback=_set("dry_run"), is_eager=True,
                     help="Print what would be done, and do nothing."),
        click.Option(["--primusfile"], type=click.Path(path_type=Path), expose_value=False, is_eager=True,
                     callback=_set("primusfile"), metavar="FILE", help="A Python file that implements hooks."),
        click.Option(["--version"], is_flag=True, expose_value=False, callback=_show_version, is_eager=True,
                     help="Show the version and exit."),
    ],
)  # fmt: skip


def main(args: Sequence[str], prog: str = "primus") -> int:
    """Run one command line and return its exit code; messages go to stderr."""
    state = State()
    try:
        code = _invoke(list(args) or ["--help"], prog, state)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _report(error, state)


def _invoke(args: list[str], prog: str, state: State) -> int:
    try:
        with cli.make_context(prog, args, obj=state) as ctx:
            result = cli.invoke(ctx)
            return result if isinstance(result, int) else ExitCode.DONE
    except click.exceptions.Exit as exit_:
        return exit_.exit_code


_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_PATH_FAULTS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


def _report(error: Exception, state: State) -> int:
    """Show an error as far as its kind asks for, and give the exit code that fits."""
    if state.debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, click.ClickException):
        error.show()
        return ExitCode.USER_INPUT
    if isinstance(error, PrimusError):
        text = str(error) if isinstance(error, ConfigError) else f"primus: {error}"
        click.echo("\n".join((text, *getattr(error, "__notes__", ()))), err=True)
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _DISK_FAULTS + _PATH_FAULTS:
        click.echo(f"primus: {error.filename or 'cannot write'}: {error.strerror}", err=True)
        return ExitCode.ENVIRONMENT
    plugins: PluginManager | None = vars(state).get("plugins")  # not loaded: the error may stand in the loading
    owner = plugins.owner_of(error) if plugins else None
    whose = f"plugin {owner.name!r} ({owner.source})" if owner else f"primus {version_of('primus-core')}"
    again = "" if state.debug else "; run it again with --debug in front of the command for the traceback"
    click.echo(f"primus: {describe(error)}\nThis is a bug of {whose}{again}.", err=True)
    return ExitCode.TRAINING_FAILED


def run() -> None:
    """Entry point of ``primus`` and ``primus-cli``."""
    gc.disable()  # a tenth of the time of a short command, and none of them makes cycles that matter
    prog = "primus-cli" if Path(sys.argv[0]).name == "primus-cli" else "primus"
    variable = f"_{prog.upper().replace('-', '_')}_COMPLETE"
    if instruction := os.environ.get(variable):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {"obj": State(warn=lambda message: None)}, prog, variable, instruction))
    sys.exit(main(sys.argv[1:], prog))
