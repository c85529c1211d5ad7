"""FedAvg-C and FedProx-C: methods-1.md §4.4."""

import numpy as np
import pytest
import torch

from hpcfl.clients import Fleet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "model"),
    [
        ("fedprox", {"aggregation": "class-wise"}, "test_fedrep:Normed"),
        ("fedavg", {"ala": True}, "mlp"),
    ],
)
def test_a_fine_tuned_model_that_is_only_scored_leaves_the_method_as_it_is(
    federate, short_ala, method, options, model
):
    base = federate({"name": method, **options}, model={"name": model})
    tuned = {
        "name": f"{method}-c",
        "tune_epochs": 2,
        "tuned_upload": False,
    }
    scored_only = federate({**tuned, **options}, model={"name": model})
    assert scored_only.digest == base.digest
    assert not np.array_equal(
        scored_only.values["clients/pre/loss"], base.values["clients/pre/loss"]
    )
    np.testing.assert_array_equal(
        scored_only.values["clients/post/loss"], base.values["clients/post/loss"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("uploaded", [True, False])
def test_stragglers_tune_less_for_their_work_and_not_for_a_score(federate, uploaded):
    method = {"name": "fedavg-c", "tune_epochs": 4, "tuned_upload": uploaded}
    pre, slow = (
        federate(
            method,
            rounds=1,
            training={"epochs": 4},
            participation={"stragglers": share},
        ).values["clients/pre/loss"][0]
        for share in (0.0, 1.0)
    )
    assert np.array_equal(pre, slow) != uploaded


def test_epochs_add_up_and_the_proximal_term_acts_in_both_phases(federate, monkeypatch):
    trained, original = [], Fleet.train

    def train(self, rows, **how):
        trained.append((how.get("phase"), how.get("epochs"), how["proximal"][0]))
        return original(self, rows, **how)

    monkeypatch.setattr(Fleet, "train", train)
    federate({"name": "fedprox-c", "tune_epochs": 3, "mu": 0.5}, rounds=1)
    assert trained[:2] == [("tune", 3, 0.5), (None, None, 0.5)]


def test_fine_tuning_by_hand(federate):
    """One client with full batches takes tune_epochs + epochs steps of gradient descent
    per round and uploads the result.
    """
    one = [[6, 3, 2, 1]]
    tuned = federate(
        {"name": "fedavg-c", "tune_epochs": 2},
        one,
        rounds=1,
        training={"batch_size": 100},
    )
    plain = federate("fedavg", one, rounds=3, training={"batch_size": 100})
    torch.testing.assert_close(
        tuned.server["model"], plain.server["model"], rtol=1e-5, atol=1e-6
    )
