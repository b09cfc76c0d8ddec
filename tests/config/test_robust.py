"""Whatever stands in a file or on the command line: a result or messages, never another exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_core.config.render import dump, origins
from primus_core.errors import PrimusError

if TYPE_CHECKING:
    from tests.config.conftest import Toy

TEXT = """\
work_group: ${TEAM:amd}
extends: [base.yaml]
env: {A: 007, HF_TOKEN: x}
launch: {nnodes: 2}
requires: [pytest]
modules:
  pre_trainer: &m
    framework: toy
    config: pre_trainer.yaml
    model: small
    overrides:
      train: {steps: 3, lr: 1e-5}
      recompute: [a, "b"]
      save: ${exp_name}/${train.steps}
      use_turbo_grouped_mm: true
"""
SNIPPETS = [
    "\t",
    "\n",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "${",
    "*m",
    "&m ",
    "<<: *m",
    "!!int ",
    "null",
    "'",
    "#",
    "3",
    "\0",
    "é",
]


def mutated(draw: st.DrawFn) -> str:
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.sampled_from(["", *SNIPPETS])) + text[end:]
    return text


words = st.lists(
    st.builds(
        "{}{}={}".format,
        st.sampled_from(["", "--"]),
        st.sampled_from(["lr", "train", "train.lr", "env", "launch.x", "modules", "modules.pre_trainer", "exp_name"]),
        st.sampled_from(["1", "x", "{a: 1}", "[", "", "${lr}", "${env.A}", "../x", "{pre_trainer: 3}"]),
    ),
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(text=st.composite(mutated)(), words=words)
def test_any_experiment_resolves_or_says_why_not(toy: Toy, text: str, words: list[str]) -> None:
    toy.write("base.yaml", "modules: {pre_trainer: {overrides: {train: {steps: 1}}}}\n")
    (toy.folder / "exp.yaml").write_text(text, encoding="utf-8")
    try:
        experiment = toy.resolve("exp.yaml", *words)
        toy.check("exp.yaml", *words)
    except PrimusError as error:
        assert str(error)
    else:
        dump(experiment, origins=True)
        origins(experiment)
