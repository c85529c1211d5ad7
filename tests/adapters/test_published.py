"""Rules for published files."""

import pytest

from hpcfl.adapters.names import find_all_pieces
from hpcfl.adapters.published import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_rules_keep_the_limits(name):
    assert find_all_pieces(["a"], name)["a"][0].tensor == "a"
