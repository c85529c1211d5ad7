"""FedEM: methods-3.md §17."""

import math

import pytest
import torch
from by_hand import build_model, train_samples
from torch import nn

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.fedem import FedEM, compute_responsibilities, mix_predictions
from hpcfl.models.mlp import MLP


def method(**keys):
    return FedEM(name="fedem", **keys)


def test_expectation_by_hand():
    """Losses (0, ln 3), (ln 3, 0), (0, ln 3) and π = (½, ½): q ∝ (1, ⅓), (⅓, 1), (1, ⅓).
    With π = (¼, ¾) the first is (¼, ¼): even.
    """
    three = math.log(3)
    losses = torch.tensor([[0.0, three], [three, 0], [0, three]])[:, None]
    even = compute_responsibilities(-losses, torch.tensor([0.5, 0.5]))[:, 0]
    torch.testing.assert_close(
        even, torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.75, 0.25]])
    )
    assert even.mean(dim=0).tolist() == pytest.approx([7 / 12, 5 / 12])
    tilted = compute_responsibilities(-losses, torch.tensor([0.25, 0.75]))[0, 0]
    assert tilted.tolist() == pytest.approx([0.5, 0.5])


class Table(nn.Module):
    """A model with the logits of each sample of one client; x [batch, 1] is the
    sample's number.
    """

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x):
        return self.logits[x[:, 0].long()]


def test_loss_and_prediction_by_hand():
    """Two classes, sample 0 of class 0 and sample 1 of class 1. Component 1 gives the
    correct class ¾, component 2 gives it ¼ and ½. With the received models q = (¾, ¼)
    and (3/5, 2/5).
    """
    three = math.log(3)
    model = method(components=2).adapt(Table([[three, 0], [0, three]]))
    model.components[1].logits.data = torch.tensor([[0, three], [0, 0]])
    received = torch.cat([part.logits.detach().flatten() for part in model.components])
    batch = Batch(torch.tensor([[0.0], [1]]), torch.tensor([0, 1]))
    lane = Lane(
        received=received,
        mixture=torch.tensor([0.5, 0.5]),
        statistics=torch.zeros(0),
    )
    loss = method(components=2).loss(model, batch, lane)
    quarter, half = math.log(4 / 3), math.log(2)
    first = 0.75 * quarter + 0.25 * math.log(4)
    second = 0.6 * quarter + 0.4 * half
    assert loss.item() == pytest.approx((first + second) / 2)
    # q is constant: the gradient of a logit is only q_s(l)·(p − e_y)/batch
    loss.backward()
    gradient = model.components[0].logits.grad[0]
    assert gradient.tolist() == pytest.approx([-0.75 * 0.25 / 2, 0.75 * 0.25 / 2])
    lane.mixture = torch.tensor([0.25, 0.75])
    predicted = mix_predictions(model, batch.x, lane).exp()
    expected = [0.25 * 0.75 + 0.75 * 0.25, 0.25 * 0.25 + 0.75 * 0.5]
    assert predicted[:, 0].tolist() == pytest.approx(expected)


def test_the_mixture_is_the_mean_of_q_over_a_clients_samples(federate):
    """The mixture is compared with a loop. Before the update the received models are
    scored with the old mixture.
    """
    played = federate({"name": "fedem", "components": 3}, rounds=1)
    setup = played.prepared.setup
    received = played.prepared.method.server_state(setup)["model"]
    module = build_model(setup, received)
    for client in range(5):
        x, y = train_samples(played.prepared, client)
        fits = [
            part(x).softmax(dim=1)[torch.arange(len(y)), y]
            for part in module.components
        ]
        q = torch.stack(fits, dim=1)
        q = q / q.sum(dim=1, keepdim=True)
        torch.testing.assert_close(played.clients["mixture"][client], q.mean(dim=0))


def test_components_begin_as_different_draws(make_fleet):
    setup = make_fleet(model={"name": "test_fedem:two"}).setup
    first, second = method(components=2).server_state(setup)["model"].chunk(2)
    assert torch.equal(first, setup.initial().chunk(2)[0])
    assert torch.equal(second, setup.initial(1).chunk(2)[1])


def two(shape, classes):
    return method(components=2).adapt(MLP(shape, classes, hidden=(6,)))
