"""q-FFL: methods-3.md §19."""

import pytest
import torch

from hpcfl.methods.base import Cohort
from hpcfl.methods.q_ffl import QFFL

PAIR = [[4, 0, 0, 0], [0, 4, 0, 0]]


@pytest.fixture
def moved(make_fleet, arrived):
    """Return ``moved(q, losses, changes)``, which returns the change of the server's
    model, [P], by two clients with these losses F, which change the first parameter, at
    η = 1.
    """

    def step(q, losses, changes):
        fleet = make_fleet(PAIR, lr=1.0)
        method = QFFL(name="q-ffl", q=q)
        model = torch.zeros(fleet.layout.width)
        trained = torch.zeros(2, fleet.layout.width)
        trained[:, 0] = -torch.tensor(changes)
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


def test_losses_of_zero_do_not_underflow(moved):
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
