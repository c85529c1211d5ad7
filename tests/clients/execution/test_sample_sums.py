"""Sums of clipped gradients of samples, computed by hand and by Opacus."""

import copy
import math

import pytest
import torch
from refusals import expect_refusal
from torch import nn
from torch.nn import functional

from hpcfl.clients.execution import NO_SAMPLE, Work, choose_kernel
from hpcfl.clients.execution.sample_sums import PIECE
from hpcfl.clients.losses import CROSS_ENTROPY, Batch
from hpcfl.models.layer_replacements import replace_layers
from hpcfl.models.lenet import LeNet
from hpcfl.models.mlp import MLP
from hpcfl.models.text_transformer import TextTransformer

CPU = torch.device("cpu")


def sums_of(module, x, y, held, clip, loss=CROSS_ENTROPY, lanes="auto", keys=None):
    """Return the sums of one batch on ``lanes`` equal models: gradients by name,
    losses.
    """
    names = [name for name, _ in module.named_parameters()]
    tensors = {}
    for name, tensor in module.named_parameters():
        tensors[name] = tensor.detach().expand(len(x), *tensor.shape).clone()
    kernel = choose_kernel(
        copy.deepcopy(module), CPU, lanes, computes_sample_gradients=True
    )
    session = kernel.begin(Work(tensors, names, loss, clip=clip, keys=keys))
    return session.compute_gradients(
        slice(0, len(x)), Batch(x, y.masked_fill(~held, NO_SAMPLE)), {}
    )


def padded(samples, labels=0, width=PIECE):
    """Return samples [a, width, …] and their labels, padded after the given numbers of
    samples.
    """
    held = torch.zeros(1, width, dtype=torch.bool)
    held[:, : len(samples)] = True
    x = torch.full((1, width, *samples.shape[1:]), math.nan)
    x[0, : len(samples)] = samples
    y = torch.zeros(1, width, dtype=torch.int64)
    y[0, : len(samples)] = labels
    return x, y, held


def made(samples=7):
    torch.manual_seed(0)
    module = MLP((5,), 3, hidden=(4,))
    return module, torch.randn(samples, 5), torch.randint(3, (samples,))


def clipped_by_hand(module, x, y, clip):
    """Return the sum of the clipped gradients, computed for one sample after the other."""
    total = [torch.zeros_like(tensor) for tensor in module.parameters()]
    for sample, label in zip(x, y, strict=True):
        loss = functional.cross_entropy(module(sample[None]), label[None])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        norm = torch.cat([part.flatten() for part in gradients]).norm()
        for part, gradient in zip(total, gradients, strict=True):
            part += gradient * min(1.0, clip / float(norm))
    return total


def check_sums(found, expected):
    """Assert that the sums of the first lane equal these, up to rounding."""
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one[0], other, rtol=1e-4, atol=1e-6)


def linear_loss(model, batch, lane):
    """Return a loss whose gradient is the sample."""
    return model.weight[0] @ batch.x[0]


def test_a_toy_by_hand():
    """For (3, 4), (0, 1), (6, 8) and C = 5 the sum is (6, 9)."""
    module = nn.Linear(2, 1, bias=False)
    batch = padded(torch.tensor([[3.0, 4], [0, 1], [6, 8]]))
    found, _ = sums_of(module, *batch, 5.0, linear_loss)
    torch.testing.assert_close(found["weight"], torch.tensor([[[6.0, 9]]]))
    whole, losses = sums_of(module, *batch, math.inf, linear_loss)
    torch.testing.assert_close(whole["weight"], torch.tensor([[[9.0, 13]]]))
    expected = module.weight[0] @ torch.tensor([9.0, 13])
    torch.testing.assert_close(losses[0, 0], expected.detach())


@pytest.mark.parametrize("clip", [0.3, math.inf])
def test_an_mlp_sample_by_sample(clip):
    module, samples, labels = made()
    found, losses = sums_of(module, *padded(samples, labels), clip)
    check_sums(found, clipped_by_hand(module, samples, labels, clip))
    loss = functional.cross_entropy(module(samples), labels, reduction="sum")
    torch.testing.assert_close(losses[0], torch.stack([loss, loss]).detach())


def make_images():
    return LeNet((1, 8, 8), 3), torch.randn(3, 1, 8, 8)


def make_texts():
    keys = {"vocabulary": 9, "width": 8, "depth": 1, "heads": 2, "hidden": 8}
    model = TextTransformer((6,), 3, dropout=0.0, **keys)
    return model, torch.randint(9, (3, 6))


class Scaled(MLP):
    """A model with a trained factor of the logits, which has no dimension."""

    def __init__(self):
        super().__init__((5,), 3, hidden=(4,))
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.factor * super().forward(x)


def make_scaled():
    return Scaled(), torch.randn(3, 5)


@pytest.mark.parametrize("make", [make_images, make_texts, make_scaled])
def test_convolutions_and_attention_sample_by_sample(make):
    torch.manual_seed(0)
    module, samples = make()
    labels = torch.tensor([0, 2, 1])
    x = samples.repeat(6, *[1] * (samples.dim() - 1))[None, :PIECE]
    y = labels.repeat(6)[None, :PIECE]
    held = torch.arange(PIECE)[None] < 3
    found, _ = sums_of(module, x, y, held, 0.3)
    check_sums(found, clipped_by_hand(module, samples, labels, 0.3))


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_opacus_computes_the_same_gradient():
    """Opacus' clip adds 1e-6 to the norm."""
    opacus = pytest.importorskip("opacus.grad_sample")
    module, samples, labels = made()
    wrapped = opacus.GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    functional.cross_entropy(wrapped(samples), labels, reduction="sum").backward()
    of_samples = [parameter.grad_sample for parameter in wrapped.parameters()]
    norms = torch.cat([part.flatten(1) for part in of_samples], dim=1).norm(dim=1)
    factors = (0.3 / (norms + 1e-6)).clamp(max=1.0)
    found, _ = sums_of(module, *padded(samples, labels), 0.3)
    check_sums(found, [torch.einsum("i,i...", factors, part) for part in of_samples])


def test_bits_do_not_depend_on_padding_or_on_other_lanes():
    module, samples, labels = made()
    alone, _ = sums_of(module, *padded(samples, labels), 0.3)
    x, y, held = padded(samples, labels, 3 * PIECE)
    three = [x.repeat(3, 1, 1), y.repeat(3, 1), held.repeat(3, 1)]
    beside, _ = sums_of(module, *three, 0.3)
    for one, other in zip(alone.values(), beside.values(), strict=True):
        assert torch.equal(one[0], other[2])


def test_an_empty_batch_and_a_sample_that_is_not_finite_sum_to_zero():
    module, samples, _ = made(1)
    x, y, held = padded(samples * math.inf)
    for mask in (held, torch.zeros_like(held)):
        found, _ = sums_of(module, x, y, mask, 0.3)
        assert all(not part.any() for part in found.values())


def test_dropout_draws_for_each_sample():
    """Equal samples have different masks, and so different gradients; a lane's keys
    determine them.
    """
    module = replace_layers(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 2)))
    x = torch.ones(1, PIECE, 40)
    y = torch.zeros(1, PIECE, dtype=torch.int64)
    keys = torch.tensor([[[123, 456]]], dtype=torch.int32)
    rows = set()
    for place in range(4):
        held = torch.zeros(1, PIECE, dtype=torch.bool)
        held[0, place] = True
        found, _ = sums_of(module, x, y, held, math.inf, keys=lambda lanes: keys)
        rows.add(tuple(found["1.weight"][0, 0].ne(0).tolist()))
    assert len(rows) == 4


def test_a_loss_cannot_read_variables():
    def reads_counts(model, batch, lane):
        return model(batch.x).sum() * lane.counts

    module, samples, _ = made()
    with expect_refusal(r"lane\.counts"):
        sums_of(module, *padded(samples), 1.0, reads_counts)
