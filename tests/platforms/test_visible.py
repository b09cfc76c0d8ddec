import pytest

from primus_core.platforms.visible import selection

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("-1", ()),
        ("2,0", (2, 0)),
        (" 1 , 2 ", (1, 2)),
        ("0,-1,2", (0,)),
        ("0,7,1", (0,)),
        ("GPU-bb33,0", (2, 0)),
        ("gpu-bb", (2,)),
        ("GPU-aa", ()),  # names two
    ],
)
def test_selection_follows_the_vendors_rules(words, chosen):
    assert selection(words, UUIDS) == chosen
