"""Partition files with a correct checksum and wrong content: used, or refused in one
line.
"""

import json

import checked_calls
import numpy as np
import pytest
import strange
from hypothesis import given
from hypothesis import strategies as st
from playing import stamp

from hpcfl.files import hdf5

pytestmark = pytest.mark.slow

KIND = "partition"


@pytest.fixture(scope="module")
def drawn(finished):
    """Return the arrays and attributes of a real partition."""
    return hdf5.decode(
        hdf5.unseal(KIND, (finished / "run" / "partition.h5").read_bytes())
    )


@given(st.data())
def test_changed_arrays_of_a_partition_file_give_no_traceback(tmp_path, drawn, data):
    arrays, attributes = dict(drawn[0]), drawn[1]
    for name in data.draw(
        st.lists(
            st.sampled_from(sorted(arrays)),
            min_size=1,
            max_size=2,
            unique=True,
        )
    ):
        arrays[name] = strange.array(data.draw, np.asarray(arrays[name]))
    _check(tmp_path, arrays, attributes)


@given(st.data())
def test_changed_attributes_of_a_partition_file_give_no_traceback(
    tmp_path, drawn, data
):
    arrays, attributes = drawn
    attributes = {
        "partition": json.dumps(
            strange.changed(data.draw, json.loads(attributes["partition"]))
        )
    }
    _check(tmp_path, arrays, attributes if data.draw(st.integers(0, 9)) else {})


def _check(folder, arrays, attributes):
    (folder / "file.toml").write_text(checked_calls.EXPERIMENT)
    (folder / "partition.h5").write_bytes(
        hdf5.seal(KIND, hdf5.encode(arrays, attributes))
    )
    before = stamp(folder)
    checked_calls.answer(
        "check",
        folder / "file.toml",
        "--set",
        f"partition.file={folder / 'partition.h5'}",
    )
    assert stamp(folder) == before
