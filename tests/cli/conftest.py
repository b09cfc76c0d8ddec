from __future__ import annotations

import pytest

ECHO = """
    import json, sys

    @click.command(
        add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    @click.pass_obj
    def echo(state, words):
        chain = [[each.launcher, dict(each.options), each.argv] for each in state.chain]
        seen.append(chain)
        click.echo(json.dumps({"chain": chain, "dry_run": state.dry_run, "debug": state.debug}))

    seen = []

    @click.command()
    @click.argument("what")
    def fail(what):
        raise {
            "user": UserError("wrong words"),
            "config": ConfigError([Problem(Origin("x.yaml", 3, 1), "b"), Problem(Origin("x.yaml", 2, 1), "a")]),
            "environment": EnvironmentFault("no GPU"),
            "training": TrainingFailed("rank 1 died"),
            "hang": RunHung("rank 2 hangs"),
            "bug": ZeroDivisionError("division by zero"),
            "interrupt": KeyboardInterrupt(),
            "usage": click.UsageError("not so"),
            "file": click.FileError("x", "not there"),
        }[what]

    @click.command()
    def many():
        for number in range(100_000):
            print(number)

    @click.command()
    def five():
        return 4

    SIZE = [click.Option(["--size"], type=int, default=7), click.Option(["--env"], multiple=True)]

    @hookimpl
    def primus_commands():
        yield Command(name="echo", summary="Say what was said", command=f"{__name__}:echo", launches=True)
        yield Command(name="fail", summary="Fail", command=f"{__name__}:fail")
        yield Command(name="many", summary="Print", command=f"{__name__}:many")
        yield Command(name="five", summary="Exit with 4", command=f"{__name__}:five")
        yield Command(name="lost", summary="Not there", command="surely_not_there:lost")

    @hookimpl
    def primus_launchers():
        yield Launcher(name="wrap", summary="Wrap it", plan="nowhere:plan", options=f"{__name__}:SIZE")
"""


@pytest.fixture
def echo(site):
    """A plugin with commands that show what they were told, and a launcher."""
    return site.install("primus-echo", ECHO)
