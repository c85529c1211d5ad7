"""Names by patterns."""

import pytest

from hpcfl.errors import UserError
from hpcfl.rows.patterns import matching

NAMES = ["block1.qkv.A", "block1.qkv.B", "block2.qkv.A", "block2.qkv.B", "head.weight"]


@pytest.mark.parametrize(
    ("patterns", "places"),
    [
        ([], []),
        (["*.A"], [0, 2]),
        (["*.B", "block1"], [0, 1, 3]),
        (["block*.qkv"], [0, 1, 2, 3]),
        (["head.weight"], [4]),
        (["*"], [0, 1, 2, 3, 4]),
    ],
)
def test_names_of_patterns_come_in_their_own_order(patterns, places):
    assert matching(patterns, NAMES, "key") == [NAMES[place] for place in places]


def test_a_pattern_of_nothing_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match=r"key: 'haed\.weight'.* mean 'head\.weight'"):
        matching(["*.A", "haed.weight"], NAMES, "key")
    with pytest.raises(UserError, match="'A' matches none"):
        matching(["A"], NAMES, "key")
