"""FedAS: methods-3.md §10."""

import pytest
import torch
from by_hand import build_model, train_samples

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.fedas import FedAS
from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import make_row


def method(**keys):
    return FedAS(name="fedas", **keys)


class Equal(FedAS):
    """FedAS in which all clients have the same trace."""

    def compute_traces(self, fleet, inbox, rows):
        return torch.full((len(rows),), 0.3)


def test_the_alignments_loss_by_hand():
    """The loss of a class with samples at squared distances 1 and 4 is their mean, and
    of a class with a single sample its squared distance; each is divided by d
    coordinates.
    """
    model = MLP((2,), 3, hidden=())
    model.features = lambda x: x
    x = torch.tensor([[1.0, 0], [0, 2], [3, 3]])
    lane = Lane(means=torch.tensor([[0.0, 0], [0, 0], [3, 0]]))
    loss = method().compute_distance(model, Batch(x, torch.tensor([0, 0, 2])), lane)
    assert loss == (1 / 2 + 4 / 2) / 2 + 9 / 2
    one = Batch(torch.tensor([[2.0], [5]]), torch.tensor([1, 1]))
    assert (
        method().compute_distance(model, one, Lane(means=torch.ones(3, 1)))
        == (1 + 16) / 2
    )


def test_alignment_is_a_step_of_the_body_towards_the_old_features(make_fleet, rows_of):
    """With one batch of one class, b changes by −η times the gradient of the mean
    squared distance to the old body's mean feature. The head does not change.
    """
    fleet = make_fleet([[3, 0, 0, 0]])
    old, received = rows_of(fleet, 1), rows_of(fleet, 2)
    fleet.state["model"] = old
    found = method(align_lr=0.5).align_bodies(fleet, received)
    x, _ = train_samples(fleet, 0)
    goal = build_model(fleet.setup, old[0]).features(x).mean(dim=0).detach()
    model = build_model(fleet.setup, received[0])
    (model.features(x) - goal).square().mean().backward()
    model.hidden1.weight.data -= 0.5 * model.hidden1.weight.grad
    model.hidden1.bias.data -= 0.5 * model.hidden1.bias.grad
    torch.testing.assert_close(found[0], make_row(fleet.layout, model))


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_traces_by_hand(make_fleet, rows_of, kind):
    """For a linear model on one sample, ∇ = (p − e_y) ⊗ (x, 1) has the squared norm ‖p
    − e_y‖²(‖x‖² + 1). The values of two batches of one sample each are added.
    """
    fleet = make_fleet([[1, 0, 0, 0], [0, 2, 0, 0]], hidden=(), batch_size=1)
    rows = rows_of(fleet)
    state = dict(fleet.state)
    found = method(fisher=kind).compute_traces(fleet, {}, rows)
    for client, batches in enumerate((1, 2)):
        x, y = train_samples(fleet, client)
        p = build_model(fleet.setup, rows[client])(x).softmax(dim=1)
        error = p - torch.nn.functional.one_hot(y, 4)
        expected = (error.square().sum(1) * (x.square().sum(1) + 1)).sum()
        torch.testing.assert_close(
            found[client], expected / (batches if kind == "mean" else 1)
        )
    assert fleet.state == state and fleet.results.losses is None


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ([3.0, 1.0], 2),
        ([3 * 2.0**60, 2.0**60], 2),
        ([3 * 2.0**-60, 2.0**-60], 2),
        ([1.0, 0.0], 1),
        ([0.0, 1e-35], 5),
        ([0.0, 0.0], 2),
    ],
)
def test_bodies_weigh_by_traces(
    make_fleet, cohort, arrived, monkeypatch, traces, expected
):
    """The bodies are (1, …) and (5, …); t = (3, 1) gives 2 for any scale of the traces.
    Without a positive trace clients weigh by samples, 6 and 2.
    """
    monkeypatch.setattr(FedAS, "compute_traces", lambda *_: torch.tensor(traces))
    fleet = make_fleet([[6, 0, 0, 0], [0, 2, 0, 0]])
    layout, server = fleet.layout, {"model": fleet.setup.initial()}
    rows = torch.tensor([[1.0], [5.0]]).expand(2, layout.width)
    uplink = arrived(method().upload(fleet, {}, rows))
    method().aggregate(server, cohort(fleet.counts, layout), uplink)
    assert (server["model"][layout.columns("body")] == expected).all()
    assert server["model"].dtype == torch.float32
