"""``python -m primus_core`` is ``primus``."""

from primus_core.cli.main import run

run()
