"""FedCP: methods-3.md §8."""

import pytest
import torch
from torch import nn

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.fedcp import FedCP, compute_contexts, predict_separated
from hpcfl.methods.fedphp import WIDTHS, compute_discrepancy
from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import lay_out_parameters, make_row

METHOD = FedCP(name="fedcp")


@pytest.fixture
def model():
    return METHOD.adapt(MLP((5,), 4, hidden=(6,)))


@pytest.fixture
def features():
    return torch.randn(8, 6)


def test_equal_heads_make_the_gate_meaningless(model, features):
    """p + q = 1, so the logits are Wφ + 2b for any gate."""
    expected = model.head(features) + model.head.bias
    for context in (torch.zeros(6), torch.randn(6)):
        for noise in (None, torch.rand(8, 12)):
            found = predict_separated(model, features, context, noise)
            torch.testing.assert_close(found, expected)


def test_gate_and_heads_by_hand(model, features):
    """A gate that adds ln 3 to its first half gives p = ¾, q = ¼; this is LayerNorm's
    shift with scale 0.
    """
    norm = model.gate[1]
    norm.weight.data.zero_()
    norm.bias.data.copy_(torch.tensor(3.0).log() * (torch.arange(12) < 6))
    check_three_quarters(model, features)


def check_three_quarters(model, features, *noise):
    """Assert that p = ¾ and q = ¼."""
    model.personal.weight.data.normal_()
    found = predict_separated(model, features, torch.ones(6), *noise)
    expected = model.personal(0.75 * features) + model.head(0.25 * features)
    torch.testing.assert_close(found, expected)


def test_the_context_is_the_sum_of_the_personal_heads_rows(model):
    layout = lay_out_parameters(model)
    model.personal.weight.data.zero_()
    model.personal.weight.data[:2, :2] = torch.tensor([[1.0, 2.0], [2.0, 2.0]])
    found = compute_contexts(layout, make_row(layout, model)[None])
    expected = torch.tensor([[0.6, 0.8, 0, 0, 0, 0]])
    torch.testing.assert_close(found, expected)


class ToShared(nn.Module):
    """A gate that passes all features to the shared head: p = 0 and q = 1."""

    def __init__(self, width):
        super().__init__()
        scores = torch.cat([torch.full((width,), -1e3), torch.full((width,), 1e3)])
        self.scores = nn.Parameter(scores)

    def forward(self, features):
        return self.scores + 0 * features.repeat(1, 2)


class Closed(FedCP):
    """FedCP with such a gate, a zero personal head and a constant shared head."""

    def adapt(self, model):
        model = super().adapt(model)
        model.gate = ToShared(6)
        for parameter in model.personal.parameters():
            nn.init.zeros_(parameter)
        return model

    def local_train(self, fleet, rows, inbox):
        variables = self.loss_variables(fleet, inbox)
        return fleet.train(rows, params=("body",), variables=variables)

    def upload(self, fleet, inbox, trained):
        return PrivatePart.upload(self, fleet, inbox, trained)


@pytest.mark.slow
def test_with_all_features_for_the_shared_head_it_is_fedbabu(federate):
    """FedAvg of the body under the initial head."""
    method = {"name": "methods.test_fedcp:Closed", "lam": 0.0}
    found = federate(method, rounds=2)
    other = federate("fedbabu", rounds=2)
    body = other.prepared.setup.layout.columns("body")
    torch.testing.assert_close(found.server["model"][body], other.server["model"][body])


def test_the_received_features_pull_nothing(model):
    """φ = φ_w, so MMD² = 0, and its gradient is 0; otherwise the term is λ times
    fedphp's.
    """
    layout = lay_out_parameters(model)
    row = make_row(layout, model)
    batch = Batch(torch.randn(8, 5), torch.arange(8) % 4)
    context = compute_contexts(layout, row[None])[0]
    other = model.features(batch.x).detach()
    alone = FedCP(name="fedcp", lam=0.0)
    leaves = list(model.parameters())

    def loss_and_slopes(method):
        loss = method.loss(model, batch, Lane(received=row, context=context))
        return loss, torch.autograd.grad(loss, leaves, materialize_grads=True)

    torch.testing.assert_close(loss_and_slopes(METHOD), loss_and_slopes(alone))
    model.hidden1.bias.data += 5
    expected = 5 * compute_discrepancy(model.features(batch.x), other, WIDTHS)
    (loss, _), (fit, _) = loss_and_slopes(METHOD), loss_and_slopes(alone)
    assert expected > 0.1
    torch.testing.assert_close(loss - fit, expected)


def test_personal_heads_stay_and_the_shared_one_is_the_mean_of_halves(
    federate,
):
    """g ← Σ p_i ½(r_i + g) with weights by samples; the gate and the body change, too."""
    played = federate("fedcp", rounds=1)
    setup = played.prepared.setup
    layout, initial = setup.layout, setup.initial()
    head, personal = layout.columns("head"), layout.columns("personal")
    assert torch.equal(initial[head], initial[personal])
    weights = (setup.samples / setup.samples.sum()).float()
    expected = (weights @ played.clients["head"] + initial[head]) / 2
    torch.testing.assert_close(played.server["model"][head], expected)
    for group in ("body", "gate"):
        columns = layout.columns(group)
        assert (played.server["model"][columns] != initial[columns]).any()


def test_noise_by_hand(model, features):
    """u = e^(−1) gives −log(−log u) = 0, and e^(−1/3) gives ln 3; the values at the
    ends are finite.
    """
    norm = model.gate[1]
    norm.weight.data.zero_()
    noise = torch.full((8, 12), -1.0).exp()
    noise[:, :6] = torch.tensor(-1 / 3).exp()
    check_three_quarters(model, features, noise)
    for end in (0.0, 1.0):
        noise = torch.full((8, 12), end)
        assert predict_separated(model, features, torch.ones(6), noise).isfinite().all()
