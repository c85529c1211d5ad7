"""LeNet."""

import torch
from torch import nn

from hpcfl.models.lenet import plugin


def test_images_of_28_are_padded():
    torch.manual_seed(0)
    model = plugin((3, 28, 28), 9)
    torch.manual_seed(0)
    same = plugin((3, 32, 32), 9)
    x = torch.randn(2, 3, 28, 28)
    assert torch.equal(model(x), same(nn.functional.pad(x, (2, 2, 2, 2))))
