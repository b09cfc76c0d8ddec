"""Laws of merging."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from primus_core.config.tree import Leaf, Tree
from primus_core.errors import Origin


def tree_of(items: dict[str, object], source: str) -> Tree:
    origin = Origin(source, 1, 1)
    return Tree(
        origin,
        {
            name: tree_of(item, source) if isinstance(item, dict) else Leaf(item, origin, origin)
            for name, item in items.items()
        },
    )


plain = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | st.integers(0, 9), max_size=3),
    max_leaves=8,
)


@given(plain, plain, plain)
def test_merging_is_associative(a: dict[str, object], b: dict[str, object], c: dict[str, object]) -> None:
    one, two, three = tree_of(a, "a"), tree_of(b, "b"), tree_of(c, "c")
    left, right = one.merge(two).merge(three), one.merge(two.merge(three))
    assert left.plain() == right.plain()


@given(plain, plain)
def test_the_stronger_one_wins_and_nothing_else_is_lost(a: dict[str, object], b: dict[str, object]) -> None:
    weak, strong = tree_of(a, "a"), tree_of(b, "b")
    merged = weak.merge(strong)
    for path, leaf in strong.leaves():
        assert merged.find(path) is not None
        found = merged.find(path)
        assert isinstance(found, Leaf)
        assert (found.value, found.origin) == (leaf.value, leaf.origin)
    for path, leaf in weak.leaves():
        found = merged.find(path)
        if isinstance(found, Leaf) and found.origin.source == "a":
            assert found.value == leaf.value


@given(plain)
def test_merging_with_itself_or_nothing_changes_no_value(a: dict[str, object]) -> None:
    tree, nothing = tree_of(a, "a"), Tree(Origin("none"))
    assert tree.merge(tree).plain() == a
    assert tree.merge(nothing).plain() == nothing.merge(tree).plain() == a


def test_a_value_remembers_all_that_it_replaced() -> None:
    merged = tree_of({"x": 1}, "a").merge(tree_of({"x": 2}, "b").merge(tree_of({"x": 3}, "c")))
    leaf = merged.find(("x",))
    assert isinstance(leaf, Leaf)
    assert isinstance(leaf.replaced, Leaf)
    assert isinstance(leaf.replaced.replaced, Leaf)
    chain = [leaf, leaf.replaced, leaf.replaced.replaced]
    assert [(each.value, each.origin.source) for each in chain] == [(3, "c"), (2, "b"), (1, "a")]
