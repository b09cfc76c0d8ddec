"""Substitution in values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.config.interpolate import Interpolator, escape
from primus_core.config.source import parse
from primus_core.config.tree import Tree
from primus_core.errors import Problem


def substitute(text: str, **environ: str) -> tuple[dict[str, Any], list[str]]:
    problems: list[Problem] = []
    tree = parse(text, "x.yaml", problems)
    assert isinstance(tree, Tree)
    result = Interpolator(environ, (tree,), problems).tree(tree)
    return result.plain(), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${N}", 5),
        ("${SMALL}", 1e-5),
        ("${NO}", "no"),
        ("${YES}", True),
        ("${EMPTY}", None),
        ("${LONG}", "007"),
        ("${NONE:1e-3}", 1e-3),
        ("${NONE:}", None),
        ("${NONE:a:b}", "a:b"),
        ("${NONE:-1}", -1),
        ("x${N}y", "x5y"),
        ("${N}${N}", "55"),
        ("a/${NONE:b}/c", "a/b/c"),
        ("$${N}", "${N}"),
        ("$$${N}", "$${N}"),
        ("$N and $(N)", "$N and $(N)"),
        ("${k.n}", 3),
        ("n=${k.n}", "n=3"),
        ("${k.t}", "007"),
        ("${k.list}", [1, 2]),
        ("${k.chain}", 3),
        ("${top}", "t"),
        ("${k.none}", None),
        ("${k.missing:9}", 9),
    ],
)
def test_values(text: str, value: object) -> None:
    config = "k: {n: 3, t: '007', list: [1, 2], chain: '${k.n}', none: null}\ntop: t\n"
    environ = {"N": "5", "SMALL": "1e-5", "NO": "no", "YES": "true", "EMPTY": "", "LONG": "007"}
    result, problems = substitute(f"{config}a: '{text}'\n", **environ)
    assert not problems
    assert result["a"] == value
    assert type(result["a"]) is type(value)


def test_the_environment_comes_before_keys_without_a_dot() -> None:
    assert substitute("top: t\na: ${top}\n", top="e")[0]["a"] == "e"


def test_inside_lists() -> None:
    result, problems = substitute("a: [1, '${N}', ['x${N}'], {b: '${N}'}]\n", N="2")
    assert not problems
    assert result == {"a": [1, 2, ["x2"], {"b": 2}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: ${NONE}", "x.yaml:1:4: 'a': ${NONE}: the environment variable is not set, and there is no default"),
        ("a: ${b.c}", "x.yaml:1:4: 'a': ${b.c}: no such key in the configuration, and there is no default"),
        ("a: [1, '${NONE}']", "x.yaml:1:8: 'a': ${NONE}: the environment variable is not set"),
        ("a: 'x ${b'", "x.yaml:1:4: 'a': '${' is not closed"),
        ("a: ${}", "x.yaml:1:4: 'a': '${}' names neither a variable nor a key"),
        ("a: ${b c}", "x.yaml:1:4: 'a': '${b c}' names neither a variable nor a key"),
        ("a: ${b}\nb: {c: 1}", "x.yaml:1:4: 'a': '${b}' is a mapping; only single values can be taken"),
        ("a: x${b}\nb: [1]", "x.yaml:1:4: 'a': 'b' is a list and cannot be put into text"),
    ],
)
def test_what_cannot_be_substituted(text: str, message: str) -> None:
    result, problems = substitute(text)
    assert "a" not in result
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_circles_are_named() -> None:
    _, problems = substitute("k: {a: '${k.b}', b: 'x${k.c}', c: '${k.a}'}\n")
    assert any("substitution goes in a circle: k.b -> k.c -> k.a -> k.b" in problem for problem in problems)
    assert substitute("a: ${a}\n")[1] == ["x.yaml:1:4: substitution goes in a circle: a -> a"]


@given(st.text("${}a:.b", max_size=12))
def test_escaped_text_stands_for_itself(text: str) -> None:
    result, problems = substitute(f"a: '{escape(text)}'\n")
    assert not problems
    assert result["a"] == text or text == ""
