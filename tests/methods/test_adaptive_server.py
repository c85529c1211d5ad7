"""Base class of FedAdam, FedYogi and FedAdagrad."""

import pytest
import torch
from every_method import kind

every_name = pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_a_constant_second_moment_makes_it_fedavg(federate, name):
    """β₂ = 1 keeps v = τ², and with β₁ = 0 and η = 2τ the step is 2τ·Δ/(τ + τ) = Δ."""
    keys = {"beta1": 0.0, "beta2": 1.0, "tau": 0.25, "server_lr": 0.5}
    for part in ({}, {"participation": {"fraction": 0.6}}):
        torch.testing.assert_close(
            federate({"name": name, **keys}, **part).server["model"],
            federate("fedavg", **part).server["model"],
        )


@every_name
def test_the_second_moment_begins_at_the_square_of_tau(make_fleet, name):
    state = kind(name)(name=name, tau=0.5).server_state(make_fleet().setup)
    assert (state["second"] == 0.25).all()


@every_name
def test_with_rate_zero_the_model_does_not_change(federate, name):
    played = federate({"name": name, "server_lr": 0.0}, rounds=1)
    assert torch.equal(played.server["model"], played.prepared.setup.initial())
    assert played.server["first"].any()
