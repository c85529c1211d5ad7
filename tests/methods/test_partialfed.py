"""PartialFed-Adaptive: methods-2.md §7."""

import numpy as np
import pytest
import torch
from by_hand import loss_of

from hpcfl.methods.partialfed import PartialFed, repeat_by_layer

FAR = 1e4  # a logit large enough for an exact draw


class Loads(PartialFed):
    """PartialFed with a certain initial strategy: ``own`` = 1 keeps, 0 loads the shared
    model.
    """

    own: int = 0

    def client_state(self, setup):
        state = super().client_state(setup)
        state["strategy"][:, self.own] = FAR
        return state


WITHOUT_WARMUP = {"name": "partialfed", "warmup": 0}
CERTAIN = {
    "name": "test_partialfed:Loads",
    "warmup": 0,
    "strategy_share": 0.0,
}


def method(**keys):
    return PartialFed(**WITHOUT_WARMUP, **keys)


def test_loading_everything_keeps_only_the_last_step(federate):
    """With one batch per epoch θ = w − η∇f(w) for any number of epochs."""
    whole = {"batch_size": 100}
    loads = {**CERTAIN, "own": 0, "draw": "batch"}
    several = federate(loads, rounds=1, training={**whole, "epochs": 4})
    single = federate("local", rounds=1, training=whole)
    torch.testing.assert_close(several.clients["model"], single.clients["model"])


@pytest.fixture
def begun(make_fleet, rows_of):
    """Return ``begun()``, which returns a fleet before its first training, the received
    rows and the clients' rows.
    """

    def make():
        fleet = make_fleet()
        shared, own = rows_of(fleet, 1), rows_of(fleet, 2)
        fleet.state = {"model": own.clone(), "strategy": torch.zeros(5, 2, 2)}
        return fleet, shared, own

    return make


def test_the_model_is_composed_once_a_round(make_fleet, begun):
    """θ_i ← u_0 w + u_1 θ_i with one draw for each layer, followed by plain training."""
    fleet, shared, own = begun()
    plain = method(strategy_share=0.0, temperature=0.7)
    trained = plain.local_train(fleet, shared, {})
    noise = -(-fleet.uniform("first gumbel", 2, 2).log()).log()
    choice = repeat_by_layer(fleet.layout, (noise / 0.7).softmax(dim=2)[..., 0])
    start = own + choice * (shared - own)
    torch.testing.assert_close(trained, make_fleet().train(start))
    assert len(choice.unique()) == 10 and not fleet.state["strategy"].any()
    fleet, shared, _ = begun()
    learning = method(strategy_share=0.999, temperature=0.7)
    stays = learning.local_train(fleet, shared, {})
    torch.testing.assert_close(stays, start)
    assert (fleet.state["strategy"] != 0).all()


def test_strategy_batches_leave_the_model_as_it_is(begun):
    fleet, shared, own = begun()
    learning = method(strategy_share=0.999, draw="batch")
    trained = learning.local_train(fleet, shared, {})
    assert torch.equal(trained, own)
    assert (fleet.state["strategy"] != 0).all()


def test_strategy_follows_the_gradient(make_fleet, rows_of):
    """Δa = −η_a ∂f(θ̂(a))/∂a, against autograd with the same Gumbel noise."""
    counts = [[2, 1, 0, 1], [0, 0, 3, 1]]
    fleet = make_fleet(counts, dtype=torch.float64, batch_size=100)
    shared, own, layers = rows_of(fleet, 1), rows_of(fleet, 2), len(fleet.layout.layers)
    start = torch.linspace(-1, 1, 4 * layers).double().view(2, layers, 2)
    fleet.state = {"model": own, "strategy": start}
    keys = {"strategy_share": 0.999, "strategy_lr": 1.0, "temperature": 0.8}
    method(**keys, draw="batch").local_train(fleet, shared, {})
    noise = -(-fleet.uniform("gumbel", 1, layers, 2).log()).log()[:, 0].double()

    def objective(client, strategy):
        choice = ((strategy + noise[client]) / 0.8).softmax(dim=1)[None]
        mixed = (
            repeat_by_layer(fleet.layout, choice[..., 0]) * shared[client]
            + repeat_by_layer(fleet.layout, choice[..., 1]) * own[client]
        )
        return loss_of(fleet, client, mixed[0])

    for client in range(2):
        strategy = start[client].clone().requires_grad_()
        (slope,) = torch.autograd.grad(objective(client, strategy), strategy)
        moved = fleet.state["strategy"][client] - start[client]
        torch.testing.assert_close(moved, -slope)
        assert slope.abs().min() > 1e-5


def test_batches_that_train_the_strategy_are_spaced_evenly():
    counts = torch.arange(1000)
    for share in (0.2, 0.5, 0.0):
        for offset in (0.0, 0.37, 0.99):
            shared = method(strategy_share=share)
            learns = shared.trains_strategy(counts, torch.tensor(offset))
            assert abs(learns.sum() - share * 1000) <= 1
            steps = learns.nonzero().diff(dim=0)
            assert not share or steps.unique().tolist() == [round(1 / share)]


def test_the_preferred_model_is_chosen_layer_by_layer(make_fleet, rows_of):
    fleet = make_fleet([[1, 0, 0, 0]])
    own, shared = rows_of(fleet, 1), rows_of(fleet, 2)
    fleet.state = {"model": own, "strategy": torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])}
    chosen = method().choose_layers(fleet, shared)
    first, second = fleet.layout.layers
    assert torch.equal(chosen[:, first], shared[:, first])
    assert torch.equal(chosen[:, second], own[:, second])
    fleet.state["strategy"] = torch.zeros(1, 2, 2)
    assert torch.equal(method().choose_layers(fleet, shared), own)


@pytest.mark.slow
def test_scores_each_layer_as_the_strategy_prefers_it(federate):
    """A strategy that loads everything scores the shared model, and one that keeps
    everything the client's model, before and after training.
    """
    loads, keeps = (federate({**CERTAIN, "own": own}).values for own in (0, 1))
    local = federate("local").values
    for column in ("pre", "post"):
        loss = f"clients/{column}/loss"
        np.testing.assert_array_equal(
            loads[loss][:-1], loads["clients/global/loss"][:-1]
        )
        np.testing.assert_allclose(keeps[loss], local[loss], rtol=1e-5)


def test_a_cold_draw_stays_finite(federate):
    """In late rounds the temperature is at its floor."""
    cold = {**WITHOUT_WARMUP, "temperature": 5.0, "decay": 1e-20}
    played = federate(cold, rounds=3)
    assert all(tensor.isfinite().all() for tensor in played.clients.values())
