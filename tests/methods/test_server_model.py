"""Base class of methods whose clients start from a model of the server."""

import numpy as np


def test_scores_the_global_model_before_training(federate):
    played = federate("fedavg", rounds=2)
    np.testing.assert_array_equal(
        played.values["clients/pre/loss"], played.values["clients/global/loss"]
    )
    assert not np.array_equal(
        played.values["clients/pre/loss"][0], played.values["clients/post/loss"][0]
    )
