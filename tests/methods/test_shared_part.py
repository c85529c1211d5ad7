"""Private parameters of each client, and shared parameters of FedPer and FedRep, named
by patterns; ``test_equal_methods.py`` tests the case of all parameters.
"""

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.methods.fedper import FedPer

LORA = {
    "kind": "lora",
    "targets": ["hidden*"],
    "rank": 2,
}
P_A, P_B, P_HEAD = 2 * 5, 6 * 2, 4 * 6 + 4  # of an MLP 5-6-4


def fedper(shared, name="fedper"):
    return {"name": name, "shared": shared}


@pytest.mark.parametrize(
    ("method", "group"),
    [
        ("fedper", "head"),
        ("fedrep", "head"),
        ("fedcp", "personal"),
        ("fml", "mine"),
        ("gpfl", "head"),
        ({"name": "fedrod", "personal": "linear"}, "personal"),
    ],
)
def test_private_parameters_stay_with_the_clients_that_trained(federate, method, group):
    """The server has the initial ones, and each client begins with these."""
    played = federate(method, rounds=1, participation={"fraction": 0.4})
    prepared, model = played.prepared, played.server["model"]
    initial = prepared.setup.initial()
    private = prepared.setup.layout.columns(group)
    shared = slice(private.start)
    assert torch.equal(model[private], initial[private])
    assert not torch.equal(model[shared], initial[shared])
    own = played.clients[prepared.method.kept]
    moved = (own != initial[private]).any(dim=1)
    assert moved.sum() == 2
    assert len(own[moved].unique(dim=0)) == 2
    assert (played.values["floats_down"][0] == private.start).all()


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_a_prefix_by_pattern_is_the_body_in_bits(federate, name):
    by_group = federate(name, rounds=2)
    by_pattern = federate(fedper(["hidden1"], name), rounds=2)
    assert by_pattern.digest == by_group.digest
    assert by_pattern.values["floats_down"][0] == 5 * 6 + 6


@pytest.mark.parametrize(
    ("name", "shared", "width", "kept"),
    [
        ("fedper", "*.A", P_A, ["hidden1.B", "head.weight", "head.bias"]),  # FedSA-LoRA
        ("fedrep", "*.B", P_B, ["hidden1.A", "head.weight", "head.bias"]),
    ],
)
def test_a_part_of_an_adapter_is_shared_and_the_rest_stays(
    federate, name, shared, width, kept
):
    played = federate(fedper([shared], name), rounds=2, adapter=LORA)
    layout, model = played.prepared.setup.layout, played.server["model"]
    initial = played.prepared.setup.initial()
    own, columns = played.clients["head"], layout.columns_of(kept)
    assert own.shape[1] == len(columns) == P_A + P_B + P_HEAD - width
    # the server has initial private parameters, and changed shared parameters
    assert torch.equal(model[columns], initial[columns])
    moved = (model != initial).nonzero().flatten()
    assert 0 < len(moved) <= width and not set(moved.tolist()) & set(columns.tolist())
    assert np.nanmax(played.values["floats_down"]) == width
    assert np.nanmax(played.values["clients/floats_up"]) == width
    # and every client has trained its private parameters
    assert len(torch.unique(own, dim=0)) == len(own)


def test_two_clients_by_hand(make_fleet):
    """A row of 5-2-4 consists of W [2, 5], b [2] and the head; b and the head's bias
    are shared.
    """
    method = FedPer(name="fedper", shared=["*.bias"])
    fleet = make_fleet([[1, 1, 0, 0], [1, 1, 0, 0]], hidden=(2,))
    rows = torch.arange(2 * 24).view(2, 24).float()
    shared = method.cut_shared_part(fleet.layout, rows)
    private = method.cut_private_part(fleet.layout, rows)
    biases = [10, 11, 20, 21, 22, 23]
    assert shared[0].tolist() == biases
    assert private[1].tolist() == [24 + i for i in range(24) if i not in biases]
    assert torch.equal(method.join_parts(fleet.layout, shared, private), rows)


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (["hiden1"], r"method\.shared: 'hiden1' .* mean 'hidden1"),
        ([], r"method\.shared = \[\]"),
    ],
)
def test_a_pattern_of_nothing_is_refused(federate, shared, words):
    with expect_refusal(words):
        federate(fedper(shared))


def test_the_last_model_is_stored_with_its_private_part(federate, monkeypatch):
    monkeypatch.setattr(FedPer, "last_model", "last")
    clients = federate("fedper", rounds=1).clients
    assert torch.equal(clients["last"][:, -P_HEAD:], clients["head"])
