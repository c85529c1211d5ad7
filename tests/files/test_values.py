"""Numbers that cannot be used, with their place."""

import numpy as np
import pytest

from hpcfl.files import values


@pytest.mark.parametrize(
    ("array", "place"),
    [
        ([[1.0, 2.0], [3.0, np.nan]], "[1, 1] is nan"),
        ([np.inf, np.nan], "[0] is inf"),
        ([0.0, -np.inf], "[1] is -inf"),
        ([0.0, 1e39], "[1] is 1e+39"),
        ([0.0, 3e38], ""),
        ([], ""),
        ([1, 2], ""),
    ],
)
def test_the_first_number_that_is_none_has_its_place(array, place):
    assert values.describe_nonfinite(np.array(array)) == place
