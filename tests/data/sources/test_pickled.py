"""Pickles that contain only arrays, lists, dictionaries, strings and numbers."""

import os
import pickle

import numpy as np
import pytest

from hpcfl.data.sources import pickled


@pytest.mark.parametrize(
    "value", [np.arange(3), [1, "a", 0.5], {"x": np.float64(2)}, np.array([{}], object)]
)
@pytest.mark.parametrize("protocol", [3, 4])
def test_values_are_read_unchanged(value, protocol):
    assert repr(pickled.unpickle(pickle.dumps(value, protocol))) == repr(value)


@pytest.mark.parametrize("value", [os.system, np.load, set, print])
def test_other_objects_are_refused(value):
    with pytest.raises(pickle.UnpicklingError, match="it names the object"):
        pickled.unpickle(pickle.dumps(value))
