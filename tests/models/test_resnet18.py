"""ResNet-18."""

import pytest
import torch

from hpcfl.models.resnet18 import plugin


@pytest.mark.slow
def test_outputs_equal_those_of_torchvision():
    from hpcfl.data.vision import torchvision

    ours, theirs = (
        plugin((3, 64, 64), 7).eval(),
        torchvision.models.resnet18(num_classes=7).eval(),
    )
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.data = own.data  # the same order and shapes
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))
    assert len(list(ours.buffers())) == len(list(theirs.buffers()))
