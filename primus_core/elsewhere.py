"""A function called in a process of its own: what it imports, the memory it takes and how it ends stay there.

``python -m primus_core.elsewhere REF FOLDER`` calls the function with the text of ``FOLDER/order`` and writes what it
returns to ``answer``, or the message and exit code of an error that the user can mend to ``error.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from primus_core.errors import ExitCode, PrimusError
from primus_core.plugins.records import Ref, load

_LINES = 20


class FailedElsewhere(PrimusError):
    """What an error of the other process said."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(code)


def call(function: Ref, order: str, environ: Mapping[str, str], *, who: str, shown: bool = False) -> str:
    """Call ``def function(order: str) -> str`` and return its answer; ``who`` is what messages call it.

    With ``shown`` it has this process's terminal. Raises the ``PrimusError`` that it raised, or one with its last
    lines.
    """
    with tempfile.TemporaryDirectory(prefix="primus-") as name:
        folder = Path(name)
        (folder / "order").write_text(order, encoding="utf-8")
        argv = [sys.executable, "-m", "primus_core.elsewhere", function, name]
        done = subprocess.run(
            argv, env=dict(environ), capture_output=not shown, text=True, errors="replace", check=False
        )
        if (error := folder / "error.json").exists():
            content = json.loads(error.read_text(encoding="utf-8"))
            raise FailedElsewhere(content["message"], content["exit_code"])
        if (answer := folder / "answer").exists():
            return answer.read_text(encoding="utf-8")
    said = "" if shown else "\n".join(done.stderr.splitlines()[-_LINES:])
    raise PrimusError(f"{who} ended with {_how(done.returncode)}\n{said}".rstrip())


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def main(function: Ref, folder: Path) -> int:
    try:
        answer: str = load(function)((folder / "order").read_text(encoding="utf-8"))
    except PrimusError as error:
        content = {"message": str(error), "exit_code": int(error.exit_code)}
        (folder / "error.json").write_text(json.dumps(content), encoding="utf-8")
        return int(error.exit_code)
    (folder / "answer").write_text(answer, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
