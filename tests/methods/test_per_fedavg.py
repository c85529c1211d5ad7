"""Per-FedAvg: methods-2.md §1."""

import numpy as np
import pytest
import torch
from by_hand import quadratic

from hpcfl.methods.per_fedavg import PerFedAvg


def test_alpha_zero_is_sgd_on_the_second_batches(make_fleet, rows_of):
    fleet, plain = make_fleet(), make_fleet()
    trained = PerFedAvg(name="per-fedavg", alpha=0.0, beta=0.2).local_train(
        fleet, rows_of(fleet), {}
    )
    expected, _ = plain.train_by(
        lambda context: context.descend(0.2, batch=1),
        rows_of(plain),
        batches=2,
        epochs=2,
    )
    assert torch.equal(trained, expected)


@pytest.mark.parametrize(
    ("variant", "power"), [("first-order", 1), ("hessian-free", 2)]
)
@pytest.mark.parametrize("delta", [1e-3, 0.5])
def test_steps_on_a_quadratic_by_hand(make_fleet, variant, power, delta):
    # f = ½aθ²: g = a(1 − αa)θ and c = a·g, so a step is θ(1 − βa(1 − αa)) or θ(1 − βa(1
    # − αa)²)
    a, alpha, beta = 2.0, 0.1, 0.3
    fleet = make_fleet([[3, 0, 0, 0]], lanes=1, dtype=torch.float64)
    fleet.loss = quadratic(0.0, a)
    method = PerFedAvg(
        name="per-fedavg", variant=variant, alpha=alpha, beta=beta, delta=delta
    )
    steps = 2 if power == 1 else 3  # as many passes as batches in a step
    trained = method.local_train(
        fleet, torch.full((fleet.layout.width,), 5.0).double(), {}
    )
    np.testing.assert_allclose(
        trained, 5 * (1 - beta * a * (1 - alpha * a) ** power) ** steps, rtol=1e-9
    )


def test_hessian_free_keeps_tiny_gradients(make_fleet):
    """δg with δ = 1e-3 would vanish next to θ in float32; a zero gradient gives no
    step.
    """
    for scale, start in ((1e-8, 5.0), (0.0, 5.0)):
        fleet = make_fleet([[3, 0, 0, 0]], lanes=1)
        fleet.loss = quadratic(0.0, scale)
        method = PerFedAvg(
            name="per-fedavg",
            variant="hessian-free",
            alpha=0.5 / max(scale, 1e-8),
            beta=0.1 / max(scale, 1e-8),
        )
        trained = method.local_train(
            fleet, torch.full((fleet.layout.width,), start), {}
        )
        # αa = ½, βa = 0.1: a step is a factor 1 − 0.1·¼
        expected = start * (0.975**3 if scale else 1)
        np.testing.assert_allclose(trained, expected, rtol=1e-3)


@pytest.mark.slow
def test_evaluation_changes_no_bit(federate):
    for model in ({"name": "mlp"}, {"name": "test_fedrep:Normed"}):
        scored, rarely = (
            federate("per-fedavg", rounds=3, model=model, evaluation={"every": every})
            for every in (1, 10)
        )
        assert scored.digest == rarely.digest
        np.testing.assert_array_equal(
            scored.values["clients/train_loss"], rarely.values["clients/train_loss"]
        )


def test_is_scored_after_one_full_step_on_training_data(federate):
    """With whole batches the scored model is FedAvg's local model of round 1; the
    clients' test data have no effect.
    """
    whole = {"rounds": 1, "training": {"batch_size": 100}}
    personal, average = (
        federate({"name": "per-fedavg", "alpha": 0.1}, **whole).values,
        federate("fedavg", **whole).values,
    )
    np.testing.assert_allclose(
        personal["clients/pre/loss"][0], average["clients/post/loss"][0], rtol=1e-5
    )
    assert np.isfinite(personal["clients/pre/loss"][-1]).all()
    np.testing.assert_array_equal(
        personal["clients/global/loss"][0], average["clients/global/loss"][0]
    )


@pytest.mark.parametrize(("key", "score"), [("alpha", "pre"), ("beta", "post")])
def test_both_steps_are_the_learning_rate_of_the_round(federate, key, score):
    """A given rate does not decay: round 1 is the same, and round 2 differs."""
    sections = {"rounds": 2, "training": {"lr": 0.2, "lr_decay": 0.5}}
    decays, given = (
        federate({"name": "per-fedavg", **keys}, **sections).values
        for keys in ({}, {key: 0.2})
    )
    for column in ("clients/pre/loss", "clients/post/loss"):
        np.testing.assert_array_equal(decays[column][0], given[column][0])
    assert (
        decays[f"clients/{score}/loss"][1] != given[f"clients/{score}/loss"][1]
    ).any()


def test_clients_with_less_than_two_batches_train(make_fleet, rows_of):
    fleet = make_fleet([[2, 1, 0, 0]])
    rows = rows_of(fleet)
    assert not torch.equal(
        PerFedAvg(name="per-fedavg").local_train(fleet, rows, {}), rows
    )
