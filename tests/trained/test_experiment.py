"""Experiment of a run, read from its folder."""

import pytest
from refusals import expect_refusal

from hpcfl.trained import loading


@pytest.mark.slow
def test_looking_imports_no_code_that_only_the_folder_names(played):
    run = loading.load_run(
        played("fedavg", model={"name": "tiny:normalised"}).folder, own=["tiny:blobs"]
    )
    expected = "/run: .*--own tiny:normalised.*own=.'tiny:normalised'"
    with expect_refusal(expected):
        run.model(client=0)
