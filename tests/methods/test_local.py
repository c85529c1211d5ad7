"""Local: methods-1.md §4.1."""

import numpy as np
import torch
from by_hand import take_softmax_steps, train_samples

from hpcfl.methods.local import Local


def test_trains_by_plain_gradient_descent(federate):
    training = {"batch_size": 100, "lr": 0.2}
    played = federate("local", model={"hidden": []}, training=training, rounds=4)
    for client in range(5):
        x, y = train_samples(played.prepared, client)
        expected = take_softmax_steps(played.prepared.setup, x, y, 0.2, 4)
        found = played.clients["model"][client].double()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_server_is_empty_and_scores_follow_training(federate):
    played = federate("local")
    assert Local.primary == "post"
    assert played.server == {}
    # a round starts from the result of the previous one
    assert np.array_equal(
        played.values["clients/post/loss"][:-1], played.values["clients/pre/loss"][1:]
    )
