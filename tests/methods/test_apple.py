"""APPLE: methods-1.md §11. w_i = Σ_j a_ij C_j, mixed for every mini-batch."""

import numpy as np
import pytest
import torch
from by_hand import quadratic

from hpcfl.communication.message import Pool
from hpcfl.methods.apple import Apple, combine, compute_shares

CLIENTS = 5


def method(**keys):
    return Apple(name="apple", **keys)


def inbox_of(cores):
    everyone = torch.arange(len(cores))
    return {
        "cores": Pool(cores, torch.stack([everyone[everyone != i] for i in everyone]))
    }


@pytest.fixture
def started(make_fleet, rows_of):
    """Return a fleet with given relations and different core models."""

    def make(relations=None, **keys):
        fleet = make_fleet(**keys)
        fleet.state["relations"] = (
            compute_shares(fleet.setup).repeat(CLIENTS, 1)
            if relations is None
            else relations
        )
        return fleet, rows_of(fleet)

    return make


@pytest.mark.parametrize(
    "training", [{}, {"optimizer": "adam"}, {"momentum": 0.9, "epochs": 2}]
)
def test_unit_relations_that_stay_are_local(started, training):
    fleet, cores = started(torch.eye(CLIENTS), **training)
    own = method(relation_lr=0.0, times_clients=False)
    uplink = own.update(fleet, own.prepare(fleet, inbox_of(cores)))
    alone, _ = started(**training)
    assert torch.equal(uplink["core"], alone.train(cores))
    assert torch.equal(fleet.state["relations"], torch.eye(CLIENTS))


def test_the_pull_fades_without_lag(make_fleet):
    """Of 3 rounds: L = 1 gives (cos(πr/3) + 1)/2 for r = 0, 1, 2."""
    for period, expected in (1.0, [1, 0.75, 0.25]), (0.5, [1, 0.25, 0]), (0.0, [0] * 3):
        fleets = [make_fleet(round=round) for round in (1, 2, 3)]
        fading = [method(period=period).compute_fading(fleet) for fleet in fleets]
        assert fading == pytest.approx(expected)


def test_cores_of_absent_clients_stay_and_are_still_sent(federate):
    first, second = (
        federate("apple", rounds=rounds, participation={"fraction": 0.5})
        for rounds in (1, 2)
    )
    present = torch.from_numpy(np.isfinite(second.values["clients/floats_up"][1]))
    assert 0 < present.sum() < len(present)
    assert torch.equal(
        (first.server["cores"] != second.server["cores"]).any(dim=1), present
    )


def test_relations_begin_at_the_shares_of_samples_and_cores_alike(federate):
    played = federate(
        {"name": "apple", "relation_lr": 0.0},
        [[8, 3, 0, 1], [0, 9, 2, 2], [1, 0, 6, 0]],
    )
    torch.testing.assert_close(
        played.clients["relations"],
        torch.tensor([12.0, 13.0, 7.0]).div(32).repeat(3, 1),
    )
    setup = played.prepared.setup
    assert torch.equal(
        method().server_state(setup)["cores"], setup.initial().repeat(3, 1)
    )


def test_models_are_mixed_again_for_every_mini_batch(make_fleet):
    """F = ½‖w‖², so ∇F = w = a₀C₀ + a₁C₁, over two batches with η₁ = 0.1, η₂ = 0.1/P,
    and μ = 3P, which pulls relations to the shares (½, ½).
    """
    fleet = make_fleet(
        [[8, 0, 0, 0], [8, 0, 0, 0]], lanes=1, lr=0.1, dtype=torch.float64
    )
    fleet.loss = quadratic()
    width, expected = fleet.layout.width, []
    given = torch.tensor([[0.6, 0.5], [0.2, 0.9]], dtype=torch.float64)
    for i in range(2):
        a, c = given[i].tolist(), [1.0, -2.0]
        for _ in range(2):
            w = a[0] * c[0] + a[1] * c[1]
            slopes = [w * c[0], w * c[1]]
            c[i] -= 0.1 * 2 * a[i] * w
            slopes = [slope + 3 * (x - 0.5) for slope, x in zip(slopes, a, strict=True)]
            a = [a[0] - 0.1 * slopes[0], a[1] - 0.1 * slopes[1]]
        expected.append((a, c[i]))
    fleet.state["relations"] = given.clone()
    cores = torch.tensor([[1.0], [-2.0]]).double().repeat(1, width)
    own = method(relation_lr=0.1 / width, mu=3 * width)
    core = own.update(fleet, own.prepare(fleet, inbox_of(cores)))["core"]
    torch.testing.assert_close(
        fleet.state["relations"], torch.tensor([a for a, _ in expected]).double()
    )
    torch.testing.assert_close(
        core, torch.tensor([[c] for _, c in expected]).double().repeat(1, width)
    )


def test_the_mix_is_scored(started):
    fleet, cores = started()
    own = method()
    core = own.update(fleet, own.prepare(fleet, inbox_of(cores)))["core"]
    itself = torch.eye(CLIENTS).bool()
    fleet.score("mixed", combine(fleet.state["relations"], itself, core, cores))
    assert torch.equal(
        fleet.results.scores["mixed"]["loss"], fleet.results.scores["post"]["loss"]
    )
