"""Values from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.config.overrides import lay_over, parse_arguments
from primus_core.config.source import parse
from primus_core.config.tree import Tree
from primus_core.errors import Origin, Problem


def over(base: str, *words: str) -> tuple[dict[str, Any], list[str]]:
    problems: list[Problem] = []
    tree = parse(base, "x.yaml", problems)
    if not isinstance(tree, Tree):
        tree = Tree(Origin("x.yaml"))
    result = lay_over(tree, parse_arguments(words, problems), problems)
    return result.plain(), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--iters", "10"], {"iters": 10}),
        (["--iters=10"], {"iters": 10}),
        (["iters=10"], {"iters": 10}),
        (["optimizer.lr=1e-4"], {"optimizer": {"lr": 1e-4}}),
        (["--flag"], {"flag": True}),
        (["--flag", "--other", "x"], {"flag": True, "other": "x"}),
        (["--flag", "a.b=3"], {"flag": True, "a": {"b": 3}}),
        (["--shift", "-5"], {"shift": -5}),
        (["--shift=--x"], {"shift": "--x"}),
        (["note=a=b"], {"note": "a=b"}),
        (["--note=a=b"], {"note": "a=b"}),
        (["x=null", "y=", "z=None"], {"x": None, "y": None, "z": "None"}),
        (["x=08", "y=True", "z=no"], {"x": "08", "y": True, "z": "no"}),
        (["x=[1, a]", "y={b: 1e-1}"], {"x": [1, "a"], "y": {"b": 0.1}}),
        (["x=1", "x=2"], {"x": 2}),
        (["a.b=1", "a={c: 2}"], {"a": {"b": 1, "c": 2}}),
        (["note=line one\nline two"], {"note": "line one\nline two"}),
    ],
)
def test_forms(words: list[str], value: object) -> None:
    assert over("", *words) == (value, [])


def test_what_is_no_setting() -> None:
    assert over("", "x", "-y", "a..b=1", "1=2")[1] == [
        "command line, argument 1: 'x' is neither key=value nor --key value",
        "command line, argument 2: '-y' is neither key=value nor --key value",
        "command line, argument 3: 'a..b' is not a key: a part between its dots is empty",
        "command line, argument 4: '1=2' is neither key=value nor --key value",
    ]


def test_nothing_is_set_below_a_single_value() -> None:
    result, problems = over("a: {b: 5}", "a.b.c=1", "train=1", "train.lr=2")
    assert result == {"a": {"b": 5}, "train": 1}
    assert problems == [
        "command line, argument 1: cannot set 'a.b.c': 'a.b' was set to the number 5 by x.yaml:1:8",
        "command line, argument 3: cannot set 'train.lr': 'train' was set to the number 1 by command line, argument 2",
    ]


def test_a_key_without_a_value_becomes_a_mapping() -> None:
    assert over("a: null", "a.b=1") == ({"a": {"b": 1}}, [])


names = st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c"])


@given(st.lists(st.tuples(names, st.integers()), max_size=6))
def test_the_last_one_wins(settings: list[tuple[str, int]]) -> None:
    last = {name: value for name, value in settings if name.count(".") == 0}
    words = [f"{name}={value}" for name, value in settings if name.count(".") == 0]
    assert over("", *words) == (last, [])


@given(st.lists(st.text(max_size=8), max_size=5))
def test_any_words_give_settings_or_messages_but_no_exception(words: list[str]) -> None:
    over("a: 1", *words)
