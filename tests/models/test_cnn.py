import torch
from torch.nn.functional import max_pool2d, relu

from hpcfl.models.cnn import plugin


def test_pooling_before_the_relu_changes_neither_values_nor_gradients():
    torch.manual_seed(0)
    model, x = plugin((3, 32, 32), 10), torch.randn(4, 3, 32, 32)
    printed = relu(
        model.fc1(
            max_pool2d(
                relu(model.conv2(max_pool2d(relu(model.conv1(x)), 2))), 2
            ).flatten(1)
        )
    )
    assert torch.equal(model.features(x), printed)
    assert torch.equal(model(x), model.head(printed))
    ours = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    theirs = torch.autograd.grad(
        model.head(printed).square().sum(), list(model.parameters())
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
