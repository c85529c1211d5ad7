"""Training on the server."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from hpcfl.clients.synthetic import (
    descend,
    descend_by_batches,
    draw_batches,
    fit,
)
from hpcfl.models.mlp import MLP


def test_gradient_descent_on_free_tensors():
    """f = ½(z − 3)²: every step with rate r leaves (1 − r) of the distance."""
    start = {"z": torch.tensor([7.0, 3.0])}
    end = descend(start, lambda free: 0.5 * (free["z"] - 3).square().sum(), 0.25, 3)
    assert end["z"].tolist() == pytest.approx([3 + 4 * 0.75**3, 3])
    assert start["z"].tolist() == [7, 3]


def test_stochastic_descent_takes_a_step_for_each_batch():
    """f_s = ½(z − x_s)² with rate ½ goes halfway to the mean of each mini-batch: from 0
    to 1, half of the mean of x = (1, 3), then to 4, between 1 and 7.
    """
    x = torch.tensor([1.0, 3.0, 7.0])

    def loss(free, batch):
        return 0.5 * (free["z"] - x[batch]).square().mean()

    start = {"z": torch.zeros(())}
    order = [torch.tensor([0, 1]), torch.tensor([2])]
    assert descend_by_batches(start, loss, 0.5, order)["z"] == 4
    assert descend_by_batches(start, loss, 0.5, []) == start


def test_batches_are_every_sample_once_an_epoch_in_keyed_orders(make_fleet):
    setup = make_fleet(batch_size=3).setup
    found = list(draw_batches(setup, 7, 2, "head", 5))
    assert [len(batch) for batch in found] == [3, 3, 1] * 2
    first, second = torch.cat(found[:3]), torch.cat(found[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == [*range(7)]
    assert not torch.equal(first, second)
    again = list(draw_batches(setup, 7, 2, "head", 5))
    assert all(map(torch.equal, found, again))
    other = list(draw_batches(setup, 7, 2, "head", 6))
    assert not all(map(torch.equal, found, other))


def test_fit_trains_a_fresh_model_on_tensors(make_fleet):
    """Equal to torch's SGD on one full batch, from parameters keyed by seed and round."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3
    training = make_fleet(lr=0.5, batch_size=12, epochs=3).setup.training

    def build():
        return MLP((5,), 3, hidden=())

    fitted = [fit(build, x, y, 3, training, 0, round) for round in (1, 1, 2)]
    assert torch.equal(fitted[0], fitted[1])
    assert not torch.allclose(fitted[0], fitted[2])
    untrained = fit(build, x, y, 3, training.model_copy(update={"lr": 1e-30}), 0, 1)
    head = torch.nn.Linear(5, 3)
    torch.nn.utils.vector_to_parameters(untrained, head.parameters())
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(head(x), y).backward()
        optimizer.step()
    reached = torch.nn.utils.parameters_to_vector(head.parameters())
    torch.testing.assert_close(fitted[0], reached.detach(), rtol=1e-4, atol=1e-6)
