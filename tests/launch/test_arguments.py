"""Every word of a command line reaches the workers as it was typed, through every launcher and their nestings.

docker, srun, sbatch and torchrun are stood in for by a program that writes down its words and its environment; what it
would have started is then started here.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_core.cli.main import main

TOY = Path(__file__).parents[1] / "toy"
EXPERIMENT = "{exp_name: e, modules: {pre_trainer: {framework: toy, model: tiny}}}\n"
RECORDER = f"""#!{sys.executable} -S
import json, os, sys
if sys.argv[1] != "rm":
    with open(os.environ["RECORD"], "w") as file:
        json.dump([sys.argv, dict(os.environ), os.getcwd()], file)
"""
IMAGE = "the-image"
CONTAINER = ("container", "--engine", "docker", "--image", IMAGE, "--primus", "the-primus")
CHAINS = [
    ("direct", "--"),
    (*CONTAINER, "--"),
    (*CONTAINER, "--", "direct", "--"),
    ("slurm", "--primus", "the-primus", "srun", "-N1", "--"),
    ("slurm", "--primus", "the-primus", "sbatch", "--comment=a 'b'", "--"),
    ("slurm", "--primus", "the-primus", "--", *CONTAINER, "--"),
    ("slurm", "--primus", "the-primus", "sbatch", "--", *CONTAINER, "--", "direct", "--"),
]
AWKWARD = [
    "$HOME",
    "`id`",
    "a b",
    "'",
    '"',
    "\\",
    "*",
    "~",
    "!",
    "-n",
    "",
    "a\nb",
    "é",
    "; ls",
    "$(x)",
    "%j",
    "--",
    "#",
    "a,b",
]

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    AWKWARD
)
name = text.filter(lambda text: text not in ("", ".", "..") and "/" not in text and not {":", ","} <= {*text})


@dataclass(frozen=True)
class Recorded:
    """What a program was told."""

    argv: list[str]
    environ: dict[str, str]
    cwd: str

    def inner(self) -> tuple[list[str], dict[str, str]]:
        """The words of the primus that it would start, and its environment."""
        program = Path(self.argv[0]).name
        if program == "docker":
            words = self.argv[: self.argv.index(IMAGE)]
            names = [word for option, word in pairwise(words) if option == "--env"]
            environ = {name: self.environ[name] for name in names if name in self.environ}
            return self.argv[self.argv.index(IMAGE) + 2 :], environ
        if program == "the-primus":  # by a batch script
            return self.argv[1:], self.environ
        assert program == "srun"
        return self.argv[self.argv.index("the-primus") + 1 :], self.environ


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for program in ("docker", "srun", "sbatch", "the-primus", "torchrun"):
            file = Path(folder, program)
            file.write_text(RECORDER)
            file.chmod(0o755)
        yield Path(folder)
    for module in [module for module in sys.modules if module.partition(".")[0] == "primus_toy"]:
        del sys.modules[module]


@dataclass(frozen=True)
class Place:
    """A working folder, the programs, and where they write to."""

    folder: Path
    programs: Path
    record: Path

    @property
    def environ(self) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return {"PATH": path, "RECORD": str(self.record), "PRIMUS_PLATFORM": "cpu", "PYTHONPATH": str(TOY)}

    def primus(self, words: list[str], environ: dict[str, str]) -> str:
        """Run it in this process; what it prints."""
        with (
            mock.patch.dict(os.environ, self.environ | environ, clear=True),
            mock.patch.object(sys, "path", [str(TOY), *sys.path]),
            mock.patch.object(sys, "executable", str(self.programs / "torchrun")),
            chdir(self.folder),
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
        ):
            assert main(words) == 0, err.getvalue()
        return out.getvalue()

    def bash(self, script: str, environ: dict[str, str]) -> None:
        subprocess.run(["bash"], input=script.encode(), env=self.environ | environ, cwd=self.folder, check=True)

    def recorded(self) -> Recorded:
        found = Recorded(*json.loads(self.record.read_text()))
        self.record.unlink()
        if Path(found.argv[0]).name == "sbatch":
            subprocess.run(["bash", found.argv[-1]], env=found.environ, cwd=self.folder, check=True)
            return self.recorded()
        assert found.cwd == str(self.folder)
        return found


each_chain = pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "-".join(w for w in chain if w.isalpha()))


@each_chain
def test_awkward_words_arrive_as_they_were_typed(programs, chain):
    arrive(programs, chain, "a 'b' $HOME; é\n", '$(x) "c".yaml', "a'b\nc", "`id`; $HOME --")


@pytest.mark.slow
@each_chain
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(folder=name, file=name, of_launcher=text, of_train=text)
def test_any_words_arrive_as_they_were_typed(programs, chain, folder, file, of_launcher, of_train):
    arrive(programs, chain, folder, file, of_launcher, of_train)


def arrive(programs: Path, chain: tuple[str, ...], folder: str, file: str, of_launcher: str, of_train: str) -> None:
    """Go from launcher to launcher, in a folder and with a file of these names and variables of these values."""
    with tempfile.TemporaryDirectory() as base:
        place = Place(Path(base).resolve() / folder, programs, Path(base) / "record")
        place.folder.mkdir()
        (place.folder / file).write_text(EXPERIMENT)
        position = chain.index("--")
        words = [*chain[:position], "--env", f"T_L={of_launcher}", *chain[position:], "train", "pretrain"]
        words += [f"--config={file}", "--env", f"T_T={of_train}", "--steps", "2"]
        environ: dict[str, str] = {}
        while True:
            pasted = paste(place, words, environ)
            place.primus(words, environ)
            found = place.recorded()
            assert plain(found) == plain(pasted)
            if Path(found.argv[0]).name == "torchrun":
                break
            words, environ = found.inner()
            environ.pop("PRIMUS_LIFELINE", None)  # it is another process's standard input
            assert words[-6:] == ["pretrain", f"--config={file}", "--env", f"T_T={of_train}", "--steps", "2"]
        assert found.environ["T_L"] == of_launcher
        assert found.environ["T_T"] == of_train
        attempt = Path(found.argv[-1])
        assert attempt.is_relative_to(place.folder)
        assert json.loads((attempt / "worker.json").read_text())["config"]["steps"] == 2


def paste(place: Place, words: list[str], environ: dict[str, str]) -> Recorded:
    """What the line that a dry run prints does in bash."""
    printed = place.primus(["--dry-run", *words], environ)
    alone = {name: value for name, value in environ.items() if name not in ("PRIMUS_ATTEMPT", "PRIMUS_OUTER")}
    place.bash(printed, alone)
    return place.recorded()


def plain(found: Recorded) -> tuple[list[str], dict[str, str]]:
    """Its words without what is another each time."""
    argv = [re.sub(r"(primus-e-\d+-)\w+|/(attempts|jobs)/\d+", r"\1\2", word) for word in found.argv]
    return argv, {name: value for name, value in found.environ.items() if name.startswith("T_")}
