"""Uploads that the changes of updates cover."""

import pytest
import tiny
from playing import run_table
from refusals import expect_refusal


@pytest.mark.parametrize("method", ["fedamp", "fedproto", "ifca", "fednova"])
def test_an_upload_that_is_no_mean_is_refused(tmp_path, method):
    table = tiny.table(method, aggregation={"rule": "mean"}, rounds=1)
    with expect_refusal("upload '"):
        run_table(table, tmp_path)
