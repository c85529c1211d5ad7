"""MOON: Li et al., CVPR 2021, equation (3)."""

import pytest
import torch
from playing import prepare_tiny

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.moon import Moon


@pytest.mark.slow
def test_in_the_first_round_both_models_are_the_same_and_do_not_pull(federate):
    """z_w = z_i, so ℓ = log 2 for any z."""
    torch.testing.assert_close(
        federate("moon", rounds=1).server["model"],
        federate("fedavg", rounds=1).server["model"],
    )
    assert not torch.allclose(
        federate("moon").server["model"], federate("fedavg").server["model"]
    )


def test_the_loss_is_the_formula(make_fleet, rows_of):
    """The formula is −log(e^a/(e^a + e^b)), where a, b are cosines of features divided
    by τ.
    """
    fleet = make_fleet([[4, 2, 0, 0]])
    model, method = fleet.resources.kernel.module, Moon(name="moon", mu=2.0, tau=0.25)
    received, last, own = rows_of(make_fleet([[1, 1, 0, 0]] * 3))
    x, y = fleet.resources.samples.take(torch.arange(4).numpy())

    def features(row):
        named = fleet.layout.split(row)
        weight, bias, *_ = named.values()
        return (x.flatten(1) @ weight.T + bias).relu(), named

    (z, named), (near, _), (far, _) = features(own), features(received), features(last)
    a, b = (
        (z * other).sum(dim=1) / (z.norm(dim=1) * other.norm(dim=1)) / 0.25
        for other in (near, far)
    )
    contrast = -(a.exp() / (a.exp() + b.exp())).log().mean()
    logits = z @ named["head.weight"].T + named["head.bias"]
    expected = torch.nn.functional.cross_entropy(logits, y) + 2 * contrast
    for name, parameter in model.named_parameters():
        parameter.data = named[name].clone()
    got = method.loss(model, Batch(x, y), Lane(received=received, last=last))
    torch.testing.assert_close(got, expected)


def test_a_client_remembers_its_model_of_its_last_round(federate):
    one = federate("moon", rounds=1)
    alone = federate("moon", [[6, 3, 2, 1]], rounds=2)
    torch.testing.assert_close(alone.clients["last"][0], alone.server["model"])
    assert len(one.clients["last"].unique(dim=0)) == 5


def test_a_strength_that_belongs_to_a_projection_head_is_noted():
    def notes(**keys):
        return prepare_tiny({"name": "moon", **keys}).notes

    (note,) = notes()
    assert note.startswith("moon: μ = 5 was tuned with the paper's projection head")
    assert notes(mu=5.0) == notes(mu=0.1) == []
