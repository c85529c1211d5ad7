"""q-FFL: methods-3.md §19."""

import pytest
import torch

from hpcfl.methods.base import Cohort
from hpcfl.methods.q_ffl import QFFL

PAIR = [[4, 0, 0, 0], [0, 4, 0, 0]]


@pytest.fixture
def moved(make_fleet, arrived):
    """Return ``moved(q, losses, changes)``, which returns the change of the server's
    model, [P], by two clients with these losses F, each of which changes one parameter,
    at η = 1.
    """

    def step(q, losses, changes, places=(0, 0)):
        fleet = make_fleet(PAIR, lr=1.0)
        method = QFFL(name="q-ffl", q=q)
        model = torch.zeros(fleet.layout.width)
        trained = torch.zeros(2, fleet.layout.width)
        for client, (change, place) in enumerate(zip(changes, places, strict=True)):
            trained[client, place] = -change
        server = {"model": model}
        inbox = {"model": model, "losses": torch.tensor(losses).double()}
        uplink = arrived(method.upload(fleet, inbox, trained))
        cohort = Cohort(fleet.ids, fleet.counts, fleet.setup, round=1)
        method.aggregate(server, cohort, uplink)
        return model - server["model"]

    return step


def test_two_clients_by_hand(moved):
    """F = (1, 3), d = (1, 2), q = 1: Δ = (1, 6), h = (1 + 1, 4 + 3), so 7/9.

    With q = 2: Δ = (1, 18), h = (2 + 1, 2·3·4 + 9), so 19/36.
    """
    assert moved(1.0, [1.0, 3.0], [1.0, 2.0])[0].item() == pytest.approx(7 / 9)
    assert moved(2.0, [1.0, 3.0], [1.0, 2.0])[0].item() == pytest.approx(19 / 36)


def test_the_worse_client_has_the_larger_share_the_larger_q(moved):
    """With equal changes the weights are F^q: 1, 3 and 9 times as much for a loss three
    times as large.
    """
    for q, times in ((0.0, 1), (1.0, 3), (2.0, 9)):
        first, second = moved(q, [0.5, 1.5], [1.0, 1.0], places=(0, 1))[:2]
        assert (second / first).item() == pytest.approx(times)


def test_no_power_is_too_small(moved):
    """Losses of 0 count as 10⁻¹⁰, whose 20th power underflows in float32: F^q d/(q
    F^(q−1) d² + F^q) = 10⁻¹⁰ d/(20 d² + 10⁻¹⁰).
    """
    found = moved(20.0, [0.0, 0.0], [0.5, 0.5])[0].item()
    assert found == pytest.approx(0.5e-10 / 5, rel=1e-5)


def test_losses_are_those_of_the_received_model(make_fleet, monkeypatch):
    """The losses are computed on all training samples, before training."""
    fleet = make_fleet()
    model = fleet.setup.initial()
    expected = fleet.loss_of(model)
    seen = []
    monkeypatch.setattr(
        QFFL, "upload", lambda self, fleet, inbox, trained: seen.append(inbox["losses"])
    )
    QFFL(name="q-ffl").update(fleet, {"model": model})
    assert torch.equal(seen[0], expected)
