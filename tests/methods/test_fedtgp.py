"""FedTGP: methods-3.md §14."""

import math

import numpy as np
import pytest
import torch

from hpcfl.methods.base import Cohort
from hpcfl.methods.fedtgp import FedTGP, compute_contrast, generate_prototypes


def method(**keys):
    return FedTGP(name="fedtgp", **keys)


def network_of(server):
    return {
        name.removeprefix("network."): tensor
        for name, tensor in server.items()
        if name.startswith("network.")
    }


def test_the_margin_is_the_largest_gap_to_the_nearest_class():
    """Class means (0, 0), from two uploads, and (3, 0): the margin is 3, at most the
    cap. With a third class at (3, 4) the gaps are 3, 3 and 4.
    """
    uploads = torch.tensor([[-1.0, 0], [1, 0], [3, 0], [3, 4]])
    labels = torch.tensor([0, 0, 2, 3])
    assert method().compute_margin(uploads[:3], labels[:3]) == 3
    assert method(margin_cap=1.0).compute_margin(uploads[:3], labels[:3]) == 1
    assert method().compute_margin(uploads, labels) == 4
    assert method().compute_margin(uploads[:2], labels[:2]) == 0  # no other class


def test_without_server_epochs_prototypes_are_constant(federate):
    still = {"name": "fedtgp", "server_epochs": 0}
    played = federate(still, rounds=2)
    first = method().server_state(played.prepared.setup)
    assert torch.equal(played.server["prototypes"], first["prototypes"])
    moved = federate({"name": "fedtgp", "server_epochs": 1}, rounds=2)
    assert not torch.equal(moved.server["prototypes"], first["prototypes"])


@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_the_loss_of_an_upload_at_its_prototype(margin):
    """Distances 0 and D = 5, logits −m and −5: log(1 + e^{m − 5}); the gradient is
    finite.
    """
    prototypes = torch.tensor([[1.0, 1], [4, 5]], requires_grad=True)
    loss = compute_contrast(
        prototypes[:1].detach(), torch.tensor([0]), prototypes, margin
    )
    assert loss.item() == pytest.approx(math.log1p(math.exp(margin - 5)), rel=1e-4)
    loss.backward()
    assert prototypes.grad.isfinite().all()


def test_a_step_of_the_network_by_autograd(make_fleet):
    """One full batch of the uploads of the clients' classes: every tensor of T changes
    by −η times its gradient; the prototypes are the outputs of the new T.
    """
    setup = make_fleet(batch_size=100).setup
    counts = torch.tensor([[2, 1, 0, 0], [0, 7, 3, 0]]).double()
    uploads = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    own = method(server_epochs=1, server_lr=0.5)
    server = own.server_state(setup)
    before = network_of(server)
    cohort = Cohort(np.arange(2), counts, setup, 1)
    own.aggregate(server, cohort, {"prototypes": uploads.flatten(1)})
    leaves = {name: part.clone().requires_grad_() for name, part in before.items()}
    given = torch.stack([uploads[0, 0], uploads[0, 1], uploads[1, 1], uploads[1, 2]])
    labels = torch.tensor([0, 1, 1, 2])
    loss = compute_contrast(
        given, labels, generate_prototypes(leaves), own.compute_margin(given, labels)
    )
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    after = network_of(server)
    for (name, start), gradient in zip(before.items(), gradients, strict=True):
        torch.testing.assert_close(after[name], start - 0.5 * gradient)
    assert torch.equal(server["prototypes"], generate_prototypes(after))
    assert server["present"].all()  # also a class that no client has
