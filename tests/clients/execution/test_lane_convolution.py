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
    trained = [key for key, _ in module.named_parameters()]
    x = torch.randn(LANES, BATCH, 3, 8, 8, dtype=torch.float64)
    batch = Batch(x, torch.randint(4, (LANES, BATCH)))

    def run(kernel, lanes):
        own = {key: value[lanes].clone() for key, value in tensors.items()}
        logits = kernel.predict(own, x[lanes], {}, default_prediction)
        session = kernel.begin(Work(own, trained, CROSS_ENTROPY))
        of_lanes = Batch(batch.x[lanes], batch.y[lanes])
        width = lanes.stop - lanes.start
        gradients, losses = session.compute_gradients(slice(0, width), of_lanes, {})
        return [logits, *gradients.values(), losses]

    everyone = slice(0, LANES)
    loop = BatchedKernel(module, LANES, "loop")
    found = run(loop, everyone)
    compare(found, run(BatchedKernel(module, LANES), everyone))
    for lane in range(LANES):
        alone = run(SerialKernel(module), slice(lane, lane + 1))
        compare([part[lane : lane + 1] for part in found], alone)
    assert set(groups_of_convolutions(lambda: run(loop, everyone))) == {1}


def test_batch_norm_follows_a_convolution_in_autocast_on_a_cpu():
    """All numbers are close to those of a client alone."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4)
    module = mixed.mix(nn.Sequential(*layers))
    tensors = {
        name: value.expand(LANES, *value.shape).clone()
        for name, value in [*module.named_parameters(), *module.named_buffers()]
    }
    trained = [name for name, _ in module.named_parameters()]
    x = torch.randn(LANES, BATCH, 3, 8, 8)
    batch = Batch(x, torch.randint(4, (LANES, BATCH)))
    kernel = BatchedKernel(module, LANES, "loop")
    session = kernel.begin(Work(tensors, trained, CROSS_ENTROPY))
    found, losses = session.compute_gradients(slice(0, LANES), batch, {})
    first = {name: value[:1] for name, value in tensors.items()}
    alone = SerialKernel(module).begin(Work(first, trained, CROSS_ENTROPY))
    own = Batch(batch.x[:1], batch.y[:1])
    expected, own_losses = alone.compute_gradients(slice(0, 1), own, {})
    torch.testing.assert_close(losses[:1], own_losses, rtol=0.05, atol=0.05)
    for name, slope in expected.items():
        torch.testing.assert_close(found[name][:1], slope, rtol=0.1, atol=0.05)


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
