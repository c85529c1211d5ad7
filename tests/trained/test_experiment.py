"""Experiment of a run, read from its folder."""

import numpy as np
import pytest
from refusals import expect_refusal

import hpcfl
from hpcfl.trained import loading


@pytest.mark.slow
def test_loading_a_model_imports_only_code_named_by_the_user(played):
    run = loading.load_run(
        played("fedavg", model={"name": "tiny:normalised"}).folder, own=["tiny:blobs"]
    )
    expected = "/run: .*--own tiny:normalised.*own=.'tiny:normalised'"
    with expect_refusal(expected):
        run.model(client=0)


@pytest.mark.slow
def test_models_of_redrawn_samples_are_those_of_the_run(tmp_path):
    data = {"dataset": "digits", "samples": 200, "redraw": True}
    table = {"rounds": 1, "data": data, "partition": {"clients": 2, "seed": 5}}
    run = hpcfl.run(
        table | {"method": {"name": "local"}}, out=tmp_path / "run", progress=False
    )
    trained = run.models.model(1)
    confusion = run.confusion(client=1)
    assert np.diag(confusion).sum() / confusion.sum() == trained.recorded
