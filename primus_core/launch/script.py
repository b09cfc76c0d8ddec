"""A plan as text for bash: pasted there, it does the same run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from primus_core.launch.plan import Plan
from primus_core.plugins.records import EnvVar
from primus_core.secrets import MASK, scrub

_END = "END_OF_FILE"


def render(plan: Plan, secrets: Iterable[str] = ()) -> str:
    """The whole plan in one subshell, which stops at the first error and leaves the user's shell as it was.

    It writes over no file: pasted twice, it does not mix two runs.

    Secrets are masked: their lines are comments, so that what your shell has is used.
    """
    body = "".join([*map(_export, plan.env), *map(_inside, plan.inside), *_files(plan), _command(plan.argv)])
    hidden = (var.value for var in (*plan.env, *plan.inside) if var.secret)
    return scrub(f"(set -eC\n{body})\n", (*secrets, *hidden))


def _export(var: EnvVar) -> str:
    origin = " ".join(var.origin.split())
    if var.secret:
        return f"# export {var.name}='{MASK}'  # {origin}; a secret: set it in your shell\n"
    return f"export {var.name}={shlex.quote(var.value)}  # {origin}\n"


def _inside(var: EnvVar) -> str:
    """What the primus inside sets by itself: a comment here."""
    value = MASK if var.secret else " ".join(shlex.quote(var.value).split())
    return f"# inside: {var.name}={value}  # {' '.join(var.origin.split())}\n"


def _files(plan: Plan) -> Iterable[str]:
    for folder in sorted({file.path.parent for file in plan.files}):
        yield f"mkdir -p {shlex.quote(str(folder))}\n"
    for file in plan.files:
        end = _END
        while end in file.text:
            end += "_"
        text = file.text if file.text.endswith("\n") or not file.text else file.text + "\n"
        yield f"cat > {shlex.quote(str(file.path))} <<'{end}'\n{text}{end}\n"


def _command(argv: Iterable[str]) -> str:
    return shlex.join(argv) + "\n"
