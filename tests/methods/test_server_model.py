"""Base class of methods whose clients start from a model of the server."""

import numpy as np
import pytest
import torch
from every_method import NAMES, kind, short

from hpcfl.methods._server_model import ServerModel


def trains_in_its_own_way(method):
    hooks = "local_train", "update", "finish"
    return issubclass(method, ServerModel) and any(
        getattr(method, hook) is not getattr(ServerModel, hook) for hook in hooks
    )


OWN = [name for name in NAMES if trains_in_its_own_way(kind(name))]


class WithOwnVariable:
    """A change of a method whose loss has a factor of 1, a variable that ``prepare``
    computes.
    """

    def prepare(self, fleet, inbox):
        ones = torch.ones(len(fleet.ids))
        return {**super().prepare(fleet, inbox), "ones": ones}

    def loss_variables(self, fleet, inbox):
        return {**super().loss_variables(fleet, inbox), "factor": inbox["ones"]}

    def loss(self, model, batch, lane):
        return lane.factor * super().loss(model, batch, lane)


def __getattr__(name):
    """Return the changed method ``own_NAME``."""
    if not name.startswith("own_"):
        raise AttributeError(name)
    return type(name, (WithOwnVariable, kind(name.removeprefix("own_"))), {})


def test_scores_the_global_model_before_training(federate):
    played = federate("fedavg", rounds=2)
    np.testing.assert_array_equal(
        played.values["clients/pre/loss"], played.values["clients/global/loss"]
    )
    assert not np.array_equal(
        played.values["clients/pre/loss"][0], played.values["clients/post/loss"][0]
    )


@pytest.mark.parametrize("name", OWN)
def test_own_variables_reach_the_loss_of_every_method(federate, name):
    keys = short(name)
    changed = federate({**keys, "name": f"{__name__}:own_{name}"}, rounds=1)
    plain = federate(keys, rounds=1)
    for key, tensor in plain.state.items():
        torch.testing.assert_close(changed.state[key], tensor, equal_nan=True)
