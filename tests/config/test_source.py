"""YAML text to values with places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.config.render import shown
from primus_core.config.source import parse, parse_scalar, read, scalar
from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin, Problem

ORIGIN = Origin("command line, argument 1")


def load(text: str) -> tuple[Any, list[str]]:
    problems: list[Problem] = []
    node = parse(text, "x.yaml", problems)
    return node.plain() if isinstance(node, Tree) else node.value, [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5E3", 5000.0),
        ("1.", 1.0),
        ("+.5", 0.5),
        ("-7", -7),
        ("0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("Null", None),
        ("no", "no"),
        ("On", "On"),
        ("007", "007"),
        ("08", "08"),
        ("00.5", "00.5"),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("tRue", "tRue"),
        ("-", "-"),
        (".", "."),
        ("1e", "1e"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@given(st.from_regex(r"[-+.\w]{0,12}", fullmatch=True))
def test_command_line_and_files_agree_about_every_scalar(text: str) -> None:
    if not text.isascii() or text in ("-", "---", "..."):
        return
    problems: list[Problem] = []
    in_file = parse(f"k: {text}\n", "x.yaml", problems)
    typed = parse_scalar(text, ORIGIN, problems)
    assert isinstance(in_file, Tree)
    leaf = in_file.items["k"]
    assert isinstance(leaf, Leaf)
    assert isinstance(typed, Leaf)
    assert not problems
    assert (repr(typed.value), typed.written if typed.written else None) == (
        repr(leaf.value),
        typed.written if typed.written else None,
    )


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.-: #é", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_shown_reads_as_the_same_value(value: object) -> None:
    read_again, problems = load(f"k: {shown(value)}\n")
    if "${" not in repr(value):
        assert not problems
        assert read_again == {"k": value}


def test_every_key_and_value_knows_its_place() -> None:
    node = parse("a: 1\nb:\n  c: [x,\n    y]\n", "x.yaml", [])
    assert isinstance(node, Tree)
    (first, one), (second, listed) = node.leaves()
    assert (first, str(one.key), str(one.origin)) == (("a",), "x.yaml:1:1", "x.yaml:1:4")
    assert (second, str(listed.key), str(listed.origin)) == (("b", "c"), "x.yaml:3:3", "x.yaml:3:6")
    assert [str(place) for place in listed.items] == ["x.yaml:3:7", "x.yaml:4:5"]


def test_columns_count_characters() -> None:
    node = parse("ä: {ö: 1}\n", "x.yaml", [])
    assert isinstance(node, Tree)
    ((_, leaf),) = node.leaves()
    assert str(leaf.origin) == "x.yaml:1:8"


def test_merge_keys_lose_to_the_mapping_itself_and_the_first_one_wins() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], c: 3}\nq: {<<: *x}\n"
    value, problems = load(text)
    assert not problems
    assert value["z"] == {"a": 1, "b": 1, "c": 3}
    assert value["q"] == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("a: 1\nb: 2\na: 3\n", ["x.yaml:3:1: duplicate key 'a' (first set at line 1)"]),
        (
            "a:\n\tb: 1\n\tc: 2\n",
            [
                "x.yaml:2:1: a tab in the indentation; YAML takes spaces only",
                "x.yaml:3:1: a tab in the indentation; YAML takes spaces only",
            ],
        ),
        (
            "1: a\ntrue: b\n~: c\n",
            [
                "x.yaml:1:1: a key must be text; write '1' in quotes",
                "x.yaml:2:1: a key must be text; write 'true' in quotes",
                "x.yaml:3:1: a key must be text; write '~' in quotes",
            ],
        ),
        ("[a, b]: 1\n", ["x.yaml:1:1: a key must be text, not a list or a mapping"]),
        ("a: &a [*a]\n", ["x.yaml:1:4: an alias that refers to itself"]),
        ("a: &a {b: *a}\n", ["x.yaml:1:4: an alias that refers to itself"]),
        ("a: *nobody\n", ["x.yaml:1:4: not valid YAML: found undefined alias"]),
        ("a: 1\n---\nb: 2\n", ["x.yaml:3:1: a second document; one file holds one"]),
        ("a: !!python/name:os.system x\n", ["x.yaml:1:4: the tag !!python/name:os.system is not supported"]),
        ("a: !!int x\n", ["x.yaml:1:4: the tag !!int does not fit 'x'"]),
        ("a: !mine [1]\n", ["x.yaml:1:4: the tag !mine is not supported"]),
        ("a: {<<: 3}\n", ["x.yaml:1:9: '<<' takes a mapping, or a list of them"]),
    ],
)
def test_what_is_not_right_is_named_with_its_place(text: str, messages: list[str]) -> None:
    assert load(text)[1] == messages


def test_texts_that_grow_without_end() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    assert load(laughs)[1] == ["x.yaml:6:5: aliases make more than 100000 values of it"]
    for deep in ("[" * 900 + "]" * 900, "\n" + "\n".join(" " * n + "a:" for n in range(1, 900))):
        (message,) = load(f"a: {deep}\n")[1]
        assert message.endswith("nested more than 100 levels deep")


def test_explicit_tags_of_yaml_itself() -> None:
    value, problems = load("a: !!str 5\nb: !!float 3\nc: !!int 4\nd: !!null\n")
    assert not problems
    assert value == {"a": "5", "b": 3.0, "c": 4, "d": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: caf\xe9\n", "x.yaml:2:7: is not UTF-8 text"),
        (b"- a\n- b\n", "x.yaml:1:1: expected 'key: value' lines, got a list"),
        (b"hello\n", "x.yaml:1:1: expected 'key: value' lines, got a single value"),
        (b"a: \x01\n", "x.yaml:1:1: not valid YAML: "),
    ],
)
def test_files_that_are_no_mapping(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    problems: list[Problem] = []
    read(file, "x.yaml", problems)
    assert len(problems) == 1
    assert str(problems[0]).startswith(message)


def test_directories_and_missing_files(tmp_path: Path) -> None:
    problems: list[Problem] = []
    assert read(tmp_path, "x.yaml", problems) is None
    assert read(tmp_path / "none.yaml", "none.yaml", problems) is None
    assert [str(problem) for problem in problems] == [
        "x.yaml: is a directory, not a YAML file",
        "none.yaml: cannot be read: No such file or directory",
    ]


def test_empty_files_and_byte_order_marks(tmp_path: Path) -> None:
    problems: list[Problem] = []
    for content, value in ((b"", {}), (b"# nothing\n", {}), (b"---\n", {}), ("\ufeffa: 1\n".encode(), {"a": 1})):
        (tmp_path / "x.yaml").write_bytes(content)
        tree = read(tmp_path / "x.yaml", "x.yaml", problems)
        assert tree is not None
        assert tree.plain() == value
    assert not problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2e-1, no]", [1, 0.2, "no"]),
        ("{a: 1, b: {c: x}}", {"a": 1, "b": {"c": "x"}}),
        ("'007'", "007"),
        ('"5"', "5"),
        ('"a" and "b"', '"a" and "b"'),
        ('a b "c" $HOME;echo hi', 'a b "c" $HOME;echo hi'),
        ("a: b", "a: b"),
        ("# no comment", "# no comment"),
        (" 5 ", 5),
        ("!!str 5", "!!str 5"),
        ("*a", "*a"),
        ("", None),
    ],
)
def test_values_from_the_command_line(text: str, value: object) -> None:
    problems: list[Problem] = []
    node = parse_scalar(text, ORIGIN, problems)
    assert not problems
    assert (node.plain() if isinstance(node, Tree) else node.value) == value


def test_a_broken_list_on_the_command_line_is_named() -> None:
    problems: list[Problem] = []
    parse_scalar("[1, 2", ORIGIN, problems)
    assert len(problems) == 1
    assert str(problems[0]).startswith("command line, argument 1: not valid YAML")
    assert "starts with '['" in problems[0].message
