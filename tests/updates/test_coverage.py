"""Uploads that changes of updates cover."""

import pytest
import tiny
from playing import run_table

from hpcfl.errors import UserError


@pytest.mark.parametrize("method", ["fedamp", "fedproto", "ifca", "fednova"])
def test_an_upload_that_is_no_mean_of_what_was_received_is_named(tmp_path, method):
    table = tiny.table(method, aggregation={"rule": "mean"}, rounds=1)
    with pytest.raises(UserError, match="upload '") as error:
        run_table(table, tmp_path)
    assert "\n" not in str(error.value)
