"""The second form of a convolution over lanes compared with the first, in float64."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from hpcfl.clients.execution import BatchedKernel, OperatorObserver, SerialKernel, Work
from hpcfl.clients.execution.lane_convolution import OneByOne
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, default_prediction
from hpcfl.models import mixed

LANES, BATCH = 3, 2
LAYERS = {
    "plain": (nn.Conv2d(4, 6, 3), 2),
    "settings": (nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), 2),
    "same": (nn.Conv2d(4, 6, (3, 5), padding="same", bias=False), 2),
    "circular": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), 2),
    "one dimension": (nn.Conv1d(4, 6, 3, stride=2), 1),
    "three dimensions": (nn.Conv3d(4, 6, 2), 3),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), 2),
    "transposed, one dimension": (nn.ConvTranspose1d(4, 6, 2, groups=2), 1),
    "transposed, three dimensions": (nn.ConvTranspose3d(4, 6, 2, bias=False), 3),
}


def lanes_of(module):
    """Return random parameters of all lanes."""
    return {
        name: torch.randn(LANES, *value.shape, dtype=torch.float64) / 3
        for name, value in module.named_parameters()
    }


def compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_those_of_the_grouped_form(name):
    layer, dimensions = LAYERS[name]
    tensors = lanes_of(layer)
    x = torch.randn(LANES, BATCH, 4, *[7] * dimensions, dtype=torch.float64)

    def run():
        leaves = {key: value.clone().requires_grad_() for key, value in tensors.items()}
        samples = x.clone().requires_grad_()
        output = vmap(functional_call, (None, 0, 0))(layer, leaves, (samples,))
        inputs = [samples, *leaves.values()]
        return [output, *torch.autograd.grad(output.pow(2).sum(), inputs)]

    expected = run()
    with OneByOne():
        compare(run(), expected)


def groups_of_convolutions(work):
    """Return the groups of all convolutions that ``work`` calls, forward and backward."""
    groups = []

    def note(operator, args, *_):
        if operator.overloadpacket is torch.ops.aten.convolution:
            groups.append(args[8])

    with OperatorObserver(note):
        work()
    return groups


def make_batch(**how):
    """Return a mini-batch of images for each lane."""
    x = torch.randn(LANES, BATCH, 3, 8, 8, **how)
    return Batch(x, torch.randint(4, (LANES, BATCH)))


def compute(kernel, tensors, batch, lanes):
    """Return logits, gradients and losses of some lanes."""
    own = {key: value[lanes].clone() for key, value in tensors.items()}
    part = Batch(batch.x[lanes], batch.y[lanes])
    logits = kernel.predict(own, part.x, {}, default_prediction)
    trained = [key for key, _ in kernel.module.named_parameters()]
    session = kernel.begin(Work(own, trained, CROSS_ENTROPY))
    width = slice(0, lanes.stop - lanes.start)
    gradients, losses = session.compute_gradients(width, part, {})
    return [logits, *gradients.values(), losses]


EVERYONE = slice(0, LANES)


def test_a_kernel_has_two_forms_with_the_same_numbers():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 2, 3, padding=1),
        nn.Flatten(),
        nn.Linear(2 * 6 * 6, 4),
    ).double()
    tensors = lanes_of(module)
    for key, value in module.named_buffers():
        tensors[key] = value.double().expand(LANES, *value.shape).clone()
    batch = make_batch(dtype=torch.float64)
    loop = BatchedKernel(module, LANES, "loop")
    found = compute(loop, tensors, batch, EVERYONE)
    compare(found, compute(BatchedKernel(module, LANES), tensors, batch, EVERYONE))
    for lane in range(LANES):
        place = slice(lane, lane + 1)
        alone = compute(SerialKernel(module), tensors, batch, place)
        compare([part[place] for part in found], alone)
    groups = groups_of_convolutions(lambda: compute(loop, tensors, batch, EVERYONE))
    assert set(groups) == {1}


def test_batch_norm_follows_a_convolution_in_autocast_on_a_cpu():
    """All numbers are close to those of a client alone."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4)
    module = mixed.mix(nn.Sequential(*layers))
    tensors = {
        name: value.expand(LANES, *value.shape).clone()
        for name, value in [*module.named_parameters(), *module.named_buffers()]
    }
    batch = make_batch()
    kernel, first = BatchedKernel(module, LANES, "loop"), slice(0, 1)
    found = compute(kernel, tensors, batch, EVERYONE)
    alone = compute(SerialKernel(module), tensors, batch, first)
    for part, own in zip(found, alone, strict=True):
        torch.testing.assert_close(part[first], own, rtol=0.1, atol=0.05)


def test_a_loss_may_convolve_and_differentiate_by_itself():
    weights = torch.randn(LANES, 2, 4, 3, 3, dtype=torch.float64)
    shared = torch.randn(BATCH, 4, 5, 5, dtype=torch.float64)  # by all lanes

    def slope(weight):
        def loss(weight):
            return functional.conv2d(shared, weight, padding=1).pow(3).sum()

        return torch.func.grad(loss)(weight)

    expected = vmap(slope)(weights)
    with OneByOne():
        compare([vmap(slope)(weights)], [expected])
