"""Clients with NaN: named with their round, or left out of it with their private state
rolled back.
"""

import numpy as np
import pytest
import torch

from hpcfl.errors import RunFailure
from hpcfl.methods.fedavg import FedAvg

EXCLUDE = {"on_divergence": "exclude"}


class Divides(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"] = uplink["model"] / 0


def test_an_aggregate_that_is_not_finite_is_named(federate):
    with pytest.raises(RunFailure, match=r"^round 2: .*'aggregate'.*:Divides") as found:
        federate(f"{__name__}:Divides")
    assert "training.lr" not in str(found.value)


def test_an_excluded_client_is_left_out_and_its_private_state_rolled_back(federate):
    """From round 2 on client 1 is left out: the result is FedAvg over the other
    clients.
    """
    played = federate(
        {"name": "tiny:Diverges", "client": 1}, training=EXCLUDE, rounds=2
    )
    sound = federate({"name": "tiny:Diverges", "client": 1}, training=EXCLUDE, rounds=1)
    assert played.clients["rounds"][:, 0].tolist() == [2, 1, 2, 2, 2]
    assert played.values["clients/diverged"][:2].tolist() == [[0] * 5, [0, 1, 0, 0, 0]]
    alone = federate("fedavg", rounds=1)
    assert torch.equal(sound.server["model"], alone.server["model"])
    fleet = played.prepared.make_fleet(np.array([0, 2, 3, 4]), 2, is_scored=False)
    rows = fleet.train(
        sound.server["model"],
        loss=lambda model, batch, lane: torch.nn.functional.cross_entropy(
            model(batch.x), batch.y
        ),
    )
    weights = fleet.counts.sum(1) / fleet.counts.sum()
    torch.testing.assert_close(
        played.server["model"], (weights @ rows.double()).float(), rtol=1e-6, atol=1e-7
    )
    assert played.server["model"].isfinite().all()


@pytest.mark.slow
def test_a_round_with_only_diverged_clients_changes_nothing(federate):
    method = {"name": "tiny:Diverges", "everyone": True, "since": 3}
    before = federate(method, training=EXCLUDE, rounds=2)
    after = federate(method, training=EXCLUDE, rounds=3)
    assert torch.equal(before.server["model"], after.server["model"])
    assert torch.equal(before.clients["rounds"], after.clients["rounds"])
    assert before.digest == after.digest


def test_a_learning_rate_beyond_all_bounds_is_found(federate):
    with pytest.raises(RunFailure, match="diverged"):
        federate("cwfedavg", rounds=5, training={"lr": 1e30, "batch_size": 2})
