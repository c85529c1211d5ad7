"""FedALA: methods-1.md §6."""

import pytest


@pytest.mark.slow
def test_eta_zero_is_fedavg(equal_runs):
    still = {"name": "fedala", "eta": 0.0, "most_epochs": 12}
    blended, _ = equal_runs(still, "fedavg", columns=("pre", "post"))
    assert (blended.clients["ala.weights"] == 1).all()
