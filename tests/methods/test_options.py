"""Options of the common base: class-wise aggregation and adaptive local aggregation of methods other than their own."""

import pytest
import torch

from hpcfl.errors import UserError

MIXED = ["fedprox", "fedavg-c", "fedprox-c", "fedala", "feduv", "per-fedavg", "ditto", "fedphp", "partialfed"]


def test_class_wise_fedavg_is_cwfedavg(federate):
    assert federate({"name": "fedavg", "aggregation": "class-wise"}).digest == federate("cwfedavg").digest


def test_cwfedavg_with_averages_is_fedavg(federate):
    assert federate({"name": "cwfedavg", "aggregation": "average"}).digest == federate("fedavg").digest


def test_class_wise_fedprox_without_a_pull_is_cwfedavg(federate):
    assert federate({"name": "fedprox", "mu": 0.0, "aggregation": "class-wise"}).digest == federate("cwfedavg").digest


@pytest.mark.parametrize("name", MIXED)
def test_class_wise_aggregation_changes_the_start_models(federate, name):
    short = {"tune_epochs": 1} if name.endswith("-c") else {"most_epochs": 12} if name == "fedala" else {}
    average, class_wise = (federate({"name": name, "aggregation": how, **short}) for how in ("average", "class-wise"))
    assert "uploads" in class_wise.server and "uploads" not in average.server
    assert not torch.equal(class_wise.server["model"], average.server["model"])
    assert all(tensor.isfinite().all() for tensor in class_wise.server.values())


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedrod", "fedbabu", "pfedme", "fedcac", "creff", "cfl", "ifca"])
def test_methods_that_do_not_average_a_whole_model_say_so(federate, name):
    with pytest.raises(UserError, match=r"method\.aggregation = 'class-wise': must be 'average'"):
        federate({"name": name, "aggregation": "class-wise"})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "cwfedavg", "diversifed", "fedamp", "fedrep", "fedper", "ditto", "pfedme"])
def test_ala_blends_before_training(federate, name):
    """Some of the methods that have the option; each starts from a blend from its second round on."""
    plain, blended = (federate({"name": name, "ala": ala}, rounds=3) for ala in (False, True))
    assert "ala.weights" in blended.clients and "ala.weights" not in plain.clients
    assert ((blended.clients["ala.weights"] >= 0) & (blended.clients["ala.weights"] <= 1)).all()
    assert (blended.clients["ala.weights"] < 1).any()
    key = "models" if "models" in plain.server else "model"
    assert not torch.equal(plain.server[key], blended.server[key])
