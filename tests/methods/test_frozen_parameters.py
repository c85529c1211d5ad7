"""Models with frozen parameters, in a method of each family, serially and in lanes.
``test_all_methods.py`` has one such model in every method.
"""

import numpy as np
import pytest
import tiny
import torch
from every_method import of_each_family, short
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.clients.losses import CROSS_ENTROPY
from hpcfl.communication.communicator import OneProcess
from hpcfl.methods.fedavg import FedAvg
from hpcfl.rows import constants
from hpcfl.simulation import preflight

# Frozen parts of each model, and methods that need these parts trained.
FROZEN = {"head_only": "body", "body_only": "head", "bias_alone": "head"}
NEEDY = {
    "head_only": ["fedper", "fedrep", "fedbabu", "fedas", "fedpac", "lg-fedavg"],
    "body_only": ["fedper", "fedrep", "fedas", "fedpac"],
    "bias_alone": [],
}
for model in ("body_only", "bias_alone"):
    NEEDY[model] += ["fedrod", "fednh", "creff", "cwfedavg", "fedgh", "fedcp"]
REFUSED = [(name, model) for model, names in NEEDY.items() for name in names]
# One method of each family runs with two models, a few methods with all.
OTHERS = [
    (name, model)
    for name in ("fedbabu", "fedala", "partialfed")
    for model in ("body_only", "bias_only", "bias_alone")
]
CASES = [
    *((name, model) for name in of_each_family() for model in ("lora", "head_only")),
    *OTHERS,
]
PLAYED = [case for case in CASES if case not in REFUSED]


def name_model(model, **keys):
    return {"name": f"tiny:{model}", **keys}


def constants_of(prepared):
    return constants.collect(prepared.resources.kernel.module)


@pytest.mark.parametrize("case", REFUSED, ids="-".join)
def test_a_method_that_needs_a_frozen_part_is_refused(case):
    name, model = case
    with expect_refusal(rf"{name}\b.* '?{FROZEN[model]}\b"):
        prepare_tiny(short(name), model=name_model(model))


def test_a_misspelt_need_of_a_head_is_not_the_weaker_one(monkeypatch):
    monkeypatch.setattr(FedAvg, "needs_head", "Trained")
    with expect_refusal(r"'head' .*MLP"):
        FedAvg(name="fedavg").adapt(tiny.bias_alone((5,), 4))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), PLAYED)
def test_frozen_parameters_never_change(federate, tried_both_ways, name, model):
    """The statistics of a frozen batch norm do not change, either."""

    def play(lanes, **keys):
        frozen = name_model(model, **keys)
        runtime = {"lanes": lanes}
        return federate(short(name), tiny.FEW, rounds=2, model=frozen, runtime=runtime)

    played = play(lanes=1 if model == "lora" else 2)
    check_frozen_values(played, name, model)
    if model == "head_only":  # so that only the head is trained
        loss = played.prepared.method.training_loss()
        assert tried_both_ways or loss != CROSS_ENTROPY
    if model == "lora":
        is_as_a_layer_that_torch_does_not_know(played, play(lanes=1, unknown=True))
        other = play(lanes=2)
        check_frozen_values(other, name, model)
        for column in ("clients/pre/loss", "clients/post/loss"):
            np.testing.assert_allclose(
                other.values[column], played.values[column], rtol=2e-3, atol=2e-4
            )


def check_frozen_values(played, name, model):
    """Assert that all frozen values equal the initial ones."""
    begun = prepare_tiny(short(name), model=name_model(model))
    initial = constants_of(begun)
    assert initial
    for key, value in constants_of(played.prepared).items():
        assert torch.equal(value, initial[key])
    assert np.isfinite(played.values["pre/weighted"]).all()
    if model == "head_only":
        assert any(key.endswith("norm.running_mean") for key in initial)
        assert "buffers.model" not in played.clients


def is_as_a_layer_that_torch_does_not_know(frozen, unknown):
    """Assert the same bits as for a model whose frozen numbers are no parameters."""
    assert frozen.prepared.setup.layout.frozen and frozen.digest == unknown.digest
    for floats in ("clients/floats_up", "floats_down"):
        np.testing.assert_array_equal(frozen.values[floats], unknown.values[floats])


class Pulled(FedAvg):
    """The method of README, whose loss reads all parameters of its model."""

    def local_train(self, fleet, rows, inbox):
        received = fleet.rows(self.received(fleet, inbox))
        return fleet.train(rows, variables={"received": received})

    def loss(self, model, batch, lane):
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
        pull = 0.05 * (weights - lane.received).square().sum()
        return super().loss(model, batch, lane) + lane.regulariser(pull)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_loss_that_reads_all_parameters_reads_those_of_a_row(federate, lanes):
    """It equals FedProx with μ = 0.1, up to rounding."""
    own, built_in = (
        federate(method, rounds=2, model=name_model("lora"), runtime={"lanes": lanes})
        for method in (
            {"name": "methods.test_frozen_parameters:Pulled"},
            {"name": "fedprox", "mu": 0.1},
        )
    )
    torch.testing.assert_close(own.server["model"], built_in.server["model"])


class HeadAlone(FedAvg):
    """A user's method that trains only the head."""

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, params=("head",))


def test_a_method_that_trains_only_frozen_parameters_is_refused():
    method = {"name": "methods.test_frozen_parameters:HeadAlone"}
    prepared = prepare_tiny(method, model=name_model("body_only"))
    with expect_refusal(r"test_frozen_parameters\.py:\d+: .* head,"):
        preflight.run(prepared, OneProcess())


def test_a_model_that_freezes_everything_is_refused(federate):
    with expect_refusal(r"model\.name = 'tiny:all_frozen': "):
        federate("fedavg", model=name_model("all_frozen"))


def test_only_trained_parameters_are_sent_and_stored(federate):
    """Corrections of rank 2, 5 → 6 and 6 → 5, and a head 5 → 4: 2·22 + 24 floats."""
    played = federate("fedavg", rounds=1, model=name_model("lora"))
    assert played.server["model"].shape == (2 * (2 * 5 + 6 * 2) + 24,)
    assert (played.floats == 68).all()
