"""CPU time of light commands against bare Python: ``python benchmarks/startup.py [EXPERIMENT]``.

Prints the least of several runs of each command, in milliseconds (user and system), and its ratio to
``python -c pass``. All is compiled before, as it is for a user from the second command on.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

RUNS = 15


def cpu(words: list[str]) -> float:
    """Milliseconds of CPU time, the least of ``RUNS`` runs."""
    _once(words)
    return min(_once(words) for _ in range(RUNS)) * 1000


def _once(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *words], check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(experiment: str | None) -> None:
    bare = cpu(["-c", "pass"])
    commands = [["--version"], ["--help"], ["plugins", "list"]]
    commands += [["config", "check", experiment], ["config", "show", experiment]] if experiment else []
    print(f"{bare:6.1f} ms         python -c pass")
    for words in commands:
        took = cpu(["-m", "primus_core", *words])
        print(f"{took:6.1f} ms  {took / bare:4.1f} x  primus {' '.join(words)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
