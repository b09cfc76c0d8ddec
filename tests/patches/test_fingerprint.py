import importlib
import itertools
from functools import cached_property, partial

import pytest

from primus_core.patches.fingerprint import fingerprint


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes the object of a name in a module with the given source."""
    monkeypatch.syspath_prepend(tmp_path)
    count = itertools.count()

    def make(source, name="f"):
        module = f"{tmp_path.name}_{next(count)}"
        (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        return getattr(importlib.import_module(module), name)

    return make


BASE = "def f(a, b=1):\n    return a + b\n"


@pytest.mark.parametrize(
    "same",
    [
        "def f(a, b=1):  # adds\n    return (a + b)\n",
        'def f(a, b=1):\n    """Adds."""\n\n    # really\n    return a + b\n',
        "def f(\n    a,\n    b = 1,\n): return a+b\n",
        "if True:\n    def f(a, b=1):\n        return a + b\n",
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(made, same):
    assert fingerprint(made(same)) == fingerprint(made(BASE))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("def f(a, b=2):\n    return a + b\n", "its signature was (a, b=1) and is (a, b=2)"),
        ("def f(a, *, b=1) -> int:\n    return a + b\n", "its signature was (a, b=1) and is (a, *, b=1) -> int"),
        ("def f(a, b=1):\n    return b + a\n", "its body changed; its signature is still (a, b=1)"),
        ("def g(x): return x\n@g\ndef f(a, b=1):\n    return a + b\n", "its body changed"),
    ],
)
def test_signature_and_body_count(made, other, difference):
    assert fingerprint(made(BASE)).difference(fingerprint(made(other))).startswith(difference)


def test_texts_and_none_count(made):
    texts = ["return 'a'", "return 'b'", "return None", "return", "return 0", "return False", "return b'a'"]
    assert len({fingerprint(made(f"def f():\n    {text}\n")) for text in texts}) == len(texts)


def test_texts_over_several_lines_in_methods(made):
    source = "class C:\n    def f(self):\n        return '''\nfirst\n  second'''\n"
    assert fingerprint(made(source, "C").f).digest


def test_what_stands_around_a_function_does_not_count(made):
    wrapped = "import functools\n" + BASE + "@functools.wraps(f)\ndef g(*a):\n    return f(*a)\n"
    assert fingerprint(made(wrapped, "g")) == fingerprint(made(BASE))
    function = made(BASE)
    for shell in (staticmethod, classmethod, property, cached_property, partial):
        assert fingerprint(shell(function)) == fingerprint(function)


def test_classes(made):
    plain = "class C(dict):\n    '''A class.'''\n    def __init__(self, size):\n        self.size = size\n"
    mark = fingerprint(made(plain, "C"))
    assert mark.signature == "class(dict) with __init__(self, size)"
    assert mark == fingerprint(made(plain.replace("A class", "Another"), "C"))
    assert mark != fingerprint(made(plain + "    def get(self, key): ...\n", "C"))


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        (sorted, "(iterable, /, *, key=None, reverse=False)"),
        (str.join, "(self, iterable, /)"),
        (type, "type, without a signature"),
        (True, "a value of type bool"),
        (None, "a value of type NoneType"),
    ],
)
def test_what_has_no_source(value, signature):
    mark = fingerprint(value)
    assert (mark.signature, mark.digest) == (signature, "")


def test_marks_are_the_same_in_every_process_and_python(made):
    formatted = "def f(a, b=1):\n    return f'{a!r:>{b}}' + 'x' \"y\"\n"
    assert str(fingerprint(made(BASE))) == "b58306fea92549d9 (a, b=1)"
    assert str(fingerprint(made(formatted))) == "25452aee8deec3fa (a, b=1)"


def test_what_the_engine_only_imports_counts_by_its_name(made):
    function = made(BASE)
    function.__module__ = "toy.loss"
    assert fingerprint(function, engine="toy") == fingerprint(function)
    mark = fingerprint(function, engine="other")
    assert (mark.digest, mark.signature) == ("", f"toy.loss.{function.__qualname__}")
