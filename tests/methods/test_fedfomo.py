"""FedFomo: methods-1.md §10. ω_n = (L(b) − L(w_n)) / (‖w_n − b‖ + 1e-5) on the client's
validation samples."""

import numpy as np
import pytest
import torch
from playing import prepare_tiny

from hpcfl.communication.message import Pool
from hpcfl.methods.fedfomo import FedFomo


def method(**keys):
    return FedFomo(name="fedfomo", **keys)


def judged(fleet, losses):
    """Return the fleet, with given losses of models; the keys are their first
    parameters.
    """

    def loss_of(models, on="train", model="model"):
        assert on == "validation"
        if isinstance(models, Pool):
            return torch.stack(
                [loss_of(models.rows[picks], on) for picks in models.picks.T], dim=1
            )
        return torch.tensor(
            [losses[round(float(row[0]), 3)] for row in models]
        ).double()

    fleet.loss_of = loss_of
    return fleet


def test_a_change_of_one_first_model_leaves_the_other_as_it_is():
    state = method().client_state(prepare_tiny("fedfomo").setup)
    state["base"].zero_()
    assert state["model"].any()


def constant(fleet, *values):
    return torch.stack(
        [torch.full((fleet.layout.width,), float(value)) for value in values]
    )


@pytest.fixture
def one(make_fleet):
    """Return one client with base 0 and its model 2 that receives the models 1 and 4 of
    clients 1 and 2; √P = r. The losses are those of the base, of these models and of
    the client's model.
    """

    def make(*losses):
        by_model = dict(zip((0, 1, 4, 2), losses, strict=True))
        fleet = judged(make_fleet([[4, 4, 0, 0]]), by_model)
        fleet.state.update(model=constant(fleet, 2), base=constant(fleet, 0))
        object.__setattr__(
            fleet.setup, "class_counts", torch.ones(3, 4).double()
        )  # in a federation of three clients
        pool = Pool(constant(fleet, 1, 4), torch.tensor([[0, 1]]))
        return fleet, {"models": pool, "senders": torch.tensor([1, 2])}

    return make


def test_usefulness_of_two_candidates_by_hand(one):
    # Distances from the base are r, 4r and 2r (the client's model). ω = (1 − 0.5)/r, (1
    # − 2)/4r, (1 − 0.6)/2r: positive 0.5 and 0.2.
    fleet, inbox = one(1.0, 0.5, 2.0, 0.6)
    opened = method().prepare(fleet, inbox)
    start, omega = opened["start"], opened["omega"]
    r = fleet.layout.width**0.5
    assert omega[0].tolist() == pytest.approx([0.2 / r, 0.5 / r, -0.25 / r], rel=1e-4)
    torch.testing.assert_close(
        start, constant(fleet, (0.5 * 1 + 0.2 * 2) / 0.7), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("own", [1.0, 0.5])
def test_without_a_better_model_of_others_the_own_model_stays(one, own):
    """The authors' code would return to the base. The client's model is a candidate."""
    fleet, inbox = one(1.0, 1.5, 2.0, own)
    opened = method().prepare(fleet, inbox)
    assert torch.equal(opened["start"], fleet.state["model"])
    assert bool(opened["omega"][0, 0] > 0) == (own < 1)


def test_validation_samples_are_not_trained_on_nor_counted():
    counts = [[10, 5, 0, 0], [0, 20, 5, 5], [1, 0, 0, 1], [0, 0, 0, 1]]
    prepared = prepare_tiny({"name": "fedfomo", "validation": 0.2}, counts)
    parts, counted = prepared.resources.samples.parts, prepared.setup.counts
    for client, own in enumerate(counts):
        train = set(parts["train"][client].tolist())
        held_out = set(parts["validation"][client].tolist())
        assert not train & held_out and len(train | held_out) == sum(own)
    assert counted[:2].tolist() == [[8, 4, 0, 0], [0, 16, 4, 4]]
    assert counted[2:].sum(dim=1).tolist() == [1, 1]


def test_sends_the_most_useful_uploaded_models_of_others(cohort):
    server = {
        "models": torch.arange(5.0)[:, None],
        "uploaded": torch.tensor([1, 1, 0, 1, 1]).bool(),
        "affinity": torch.tensor(
            [[9, 1, 5, 2, 1], [1, 9, 5, 1, 1], [0, 0, 9, 0, 3.0]]
        ).double(),
    }
    receivers = cohort(np.ones((3, 2)))
    pool = method(received=2).send(server, receivers)["models"]
    received = [[float(pool.rows[pick, 0]) for pick in picks] for picks in pool.picks]
    # neither the client's own model nor client 2's, which was never uploaded; ties to
    # the lower id
    assert received == [[3, 1], [0, 3], [4, 0]]
    everything = method().send(server, receivers)["models"]
    assert (everything.picks >= 0).sum(1).tolist() == [3, 3, 4]
    assert everything.count_floats().tolist() == [3, 3, 4]


def test_affinity_sums_signed_usefulness(cohort):
    server = {
        "models": torch.zeros(3, 2),
        "uploaded": torch.zeros(3, dtype=torch.bool),
        "affinity": torch.eye(3).double(),
    }
    uplink = {
        "model": torch.ones(2, 2),
        "usefulness": torch.tensor([[0.5, -2, 0], [1, 0, -1]]).double(),
    }
    for _ in range(2):
        method().aggregate(server, cohort(np.ones((2, 2)), ids=[0, 2]), uplink)
    assert server["affinity"].tolist() == [[2, -4, 0], [0, 1, 0], [2, 0, -1]]
    assert server["uploaded"].tolist() == [True, False, True]
