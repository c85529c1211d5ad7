"""FML: methods-3.md §11."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.fml import FML
from hpcfl.models.mlp import MLP

UNIFORM = {"name": "fedavg", "weights": "uniform"}
PART = {"participation": {"fraction": 0.6}}


def method(**keys):
    return FML(name="fml", **keys)


@pytest.fixture
def model():
    """Return a model that contains another model."""
    outer = method().adapt(MLP((5,), 3, hidden=(4,)))
    outer.mine.head.weight.data.mul_(-1)
    return outer


BATCH = Batch(
    torch.randn(6, 5, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 1, 2, 2, 1, 0]),
)


@pytest.mark.slow
def test_labels_alone_are_fedavg_and_local(federate):
    played = federate({"name": "fml", "alpha": 1.0, "beta": 1.0}, **PART)
    width = played.clients["head"].shape[1]
    average, local = federate(UNIFORM, **PART), federate("local", **PART)
    assert torch.equal(played.server["model"][:width], average.server["model"])
    assert torch.equal(played.clients["head"], local.clients["model"])


def test_divergences_by_hand():
    """¾ ln(¾/½) + ¼ ln(¼/½) = 0.1308; averaged over two classes it is half of this."""
    teacher = torch.tensor([[0.75, 0.25]]).log()
    pupil = torch.tensor([[0.5, 0.5]]).log()
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert round(by_hand, 4) == 0.1308
    assert method().compute_divergence(teacher, pupil) == pytest.approx(by_hand)
    elements = method(kl="elements").compute_divergence(teacher, pupil)
    assert elements == pytest.approx(by_hand / 2)


@pytest.mark.parametrize("detach", [True, False])
def test_gradients_are_those_of_both_models_steps(model, detach):
    """For v_i the gradient is that of α CE + (1 − α) KL(p_g ‖ p_l) with constant p_g,
    and correspondingly for the meme. Without ``detach`` each model has the gradients of
    both divergences.
    """
    mine = list(model.mine.parameters())
    meme = [*model.hidden1.parameters(), *model.head.parameters()]
    loss = method(detach=detach, alpha=0.25, beta=0.75).loss(model, BATCH, Lane())
    found = torch.autograd.grad(loss, [*mine, *meme])
    p_g, p_l = model(BATCH.x).log_softmax(1), model.mine(BATCH.x).log_softmax(1)

    def divergence(teacher, pupil):
        if detach:
            teacher = teacher.detach()
        return kl_div(pupil, teacher, reduction="batchmean", log_target=True)

    to_mine, to_meme = 0.75 * divergence(p_g, p_l), 0.25 * divergence(p_l, p_g)
    of_mine = 0.25 * cross_entropy(model.mine(BATCH.x), BATCH.y) + to_mine
    of_meme = 0.75 * cross_entropy(model(BATCH.x), BATCH.y) + to_meme
    if not detach:
        of_mine = of_mine + to_meme
        of_meme = of_meme + to_mine
    expected = torch.autograd.grad(of_mine, mine, retain_graph=True)
    expected += torch.autograd.grad(of_meme, meme)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_private_models_are_not_uploaded(federate):
    """The server's row consists of the memes' uniform mean and the initial private
    model.
    """
    played = federate("fml", rounds=1)
    setup = played.prepared.setup
    width = played.clients["head"].shape[1]
    assert torch.equal(played.server["model"][width:], setup.initial()[width:])
    assert setup.layout.width == 2 * width
