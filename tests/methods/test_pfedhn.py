"""pFedHN: methods-3.md §15."""

import numpy as np
import pytest
import torch

from hpcfl.methods.base import Audience, Cohort
from hpcfl.methods.pfedhn import PFedHN

SMALL = {"hidden": 4, "hidden_layers": 1, "embedding": 3}


def method(**keys):
    return PFedHN(name="pfedhn", **{**SMALL, **keys})


def phi(server):
    """Return the hypernetwork's tensors without their momentum."""
    return {
        name: tensor
        for name, tensor in server.items()
        if not name.startswith("momentum.")
    }


@pytest.fixture
def setup(make_fleet):
    return make_fleet().setup


def models(own, server, setup):
    """Return the models that all clients receive, [M, P]."""
    audience = Audience(np.arange(setup.clients), setup, 1)
    return own.send(server, audience)["model"].mix()


def cohort(setup, ids):
    return Cohort(np.array(ids), setup.counts[ids], setup, 1, uniform=True)


def changes(setup, ids):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(len(ids), setup.layout.width, generator=generator)


def test_one_number_by_hand(setup):
    """e = h = 1 without a further layer, so θ = W e + b; thus ∇W = Δ e, ∇b = Δ and ∇e =
    ⟨W, Δ⟩, with rate ½ and without momentum and decay.
    """
    own = method(
        hidden=1,
        hidden_layers=0,
        embedding=1,
        hyper_lr=0.5,
        hyper_momentum=0.0,
        hyper_decay=0.0,
        hyper_clip=1e9,
    )
    server = own.server_state(setup)
    server["layer0.weight"], server["layer0.bias"] = torch.ones(1, 1), torch.zeros(1)
    weight, bias = server["output"]
    e, delta = server["embeddings"], changes(setup, [1])
    torch.testing.assert_close(models(own, server, setup), e * weight + bias)
    own.aggregate(server, cohort(setup, [1]), {"change": delta})
    torch.testing.assert_close(server["output"][0], weight - 0.5 * delta[0] * e[1])
    torch.testing.assert_close(server["output"][1], bias - 0.5 * delta[0])
    moved = e.clone()
    moved[1] -= 0.5 * (weight @ delta[0])
    torch.testing.assert_close(server["embeddings"], moved)


def test_a_step_is_torchs_of_the_clipped_gradient(setup):
    """The whole gradient is scaled to the norm ``hyper_clip``, before the decay."""
    own, ids = method(hyper_clip=0.5), [0, 1]
    server = own.server_state(setup)
    start = phi(server)
    leaves = {
        name: torch.nn.Parameter(tensor.clone()) for name, tensor in start.items()
    }
    gradients = own.compute_gradients(server, cohort(setup, ids), changes(setup, ids))
    for name, leaf in leaves.items():
        leaf.grad = gradients[name].clone()
    before = torch.nn.utils.clip_grad_norm_(leaves.values(), 0.5)
    assert before > 0.5
    optimizer = torch.optim.SGD(
        leaves.values(), lr=0.01, momentum=0.9, weight_decay=0.001
    )
    optimizer.step()
    own.aggregate(server, cohort(setup, ids), {"change": changes(setup, ids)})
    for name, leaf in leaves.items():
        torch.testing.assert_close(server[name], leaf.detach())


def test_a_private_head_stays_with_its_client(federate):
    played = federate({"name": "pfedhn", **SMALL, "head": "private"}, rounds=1)
    layout, initial = played.prepared.setup.layout, played.prepared.setup.initial()
    body = layout.columns("body").stop
    assert played.server["output"].shape == (5, body)
    assert (played.clients["head"] != initial[body:]).any(dim=1).all()
    assert (played.floats == body).all()


def test_inner_steps_do_not_end_with_an_epoch(federate):
    """Seven steps on four samples, for any number of samples and ``training.epochs``."""
    seven = {"name": "pfedhn", **SMALL, "inner_steps": 7}
    few = federate(seven, rounds=1, training={"epochs": 1})
    same = federate(seven, rounds=1, training={"epochs": 3})
    assert few.digest == same.digest
    # clients have 5 and 12 samples, 2 and 3 mini-batches per epoch
    played = federate(seven, [[5, 0, 0, 0], [6, 6, 0, 0]], rounds=1)
    gradients = played.values["clients/sample_gradients"][0]
    assert gradients[:2].tolist() == [28, 28]


def test_a_large_hypernetwork_is_noted(setup, make_fleet):
    assert method().notes(setup) == []
    wide = make_fleet(hidden=(2_000,)).setup
    (note,) = method(hidden=10_000).notes(wide)
    assert "GB on rank 0" in note


def test_the_upload_is_start_minus_end(make_fleet, rows_of):
    fleet = make_fleet()
    start, end = rows_of(fleet), rows_of(fleet, 2)
    sent = method().upload(fleet, {"model": start}, end)["change"]
    assert torch.equal(sent, start - end)


def test_a_step_is_the_first_batch_of_a_fresh_shuffle(federate):
    """If the samples fill one mini-batch, two steps are two epochs."""
    counts, keys = [[4, 0, 0, 0], [0, 4, 0, 0]], {"name": "pfedhn", **SMALL}
    played = federate({**keys, "inner_steps": 2}, counts, rounds=1)
    longer = federate(keys, counts, rounds=1, training={"epochs": 2})
    assert played.digest == longer.digest
