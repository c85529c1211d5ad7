"""FedALA: methods-1.md §6."""

import numpy as np
import pytest
import torch


@pytest.mark.slow
def test_eta_zero_is_fedavg(federate):
    plain, still = (
        federate("fedavg"),
        federate(
            {
                "name": "fedala",
                "eta": 0.0,
                "most_epochs": 12,
            }
        ),
    )
    assert torch.equal(plain.server["model"], still.server["model"])
    for name in ("clients/pre/loss", "clients/post/loss", "clients/pre/correct"):
        np.testing.assert_array_equal(plain.values[name], still.values[name])
    assert (still.clients["ala.weights"] == 1).all()


def test_without_ala_is_fedavg(federate):
    assert (
        federate({"name": "fedala", "ala": False}).digest == federate("fedavg").digest
    )
