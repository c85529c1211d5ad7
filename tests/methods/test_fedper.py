"""FedPer: methods-2.md §3."""

import numpy as np
import torch

ONE = [[6, 3, 2, 1]]


def test_a_client_alone_trains_locally(federate):
    played = federate("fedper", ONE)
    body = played.prepared.setup.layout.columns("body")
    whole = torch.cat([played.server["model"][body], played.clients["head"][0]])
    assert torch.equal(whole, federate("local", ONE).clients["model"][0])


def test_the_body_is_the_average_of_locally_trained_bodies(federate):
    """Round 1 starts as FedAvg's, so its bodies and heads equal those of FedAvg's local
    models.
    """
    played, average = federate("fedper", rounds=1), federate("fedavg", rounds=1)
    body = played.prepared.setup.layout.columns("body")
    assert torch.equal(played.server["model"][body], average.server["model"][body])
    np.testing.assert_array_equal(
        played.values["clients/post/loss"][0], average.values["clients/post/loss"][0]
    )
