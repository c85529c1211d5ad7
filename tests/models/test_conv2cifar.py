"""FedNH's network for CIFAR."""

import pytest

from hpcfl.models.conv2cifar import plugin


@pytest.mark.parametrize(("classes", "total"), [(10, 797_952), (100, 815_232)])
def test_layers_have_the_parameters_of_fednhs_paper(classes, total):
    """3·64·25 + 64, 64·64·25 + 64, 1600·384 + 384, 384·192 + 192 and 192 per class."""
    counts = []
    for layer in plugin((3, 32, 32), classes).children():
        counts.append(sum(parameter.numel() for parameter in layer.parameters()))
    assert counts == [4_864, 102_464, 614_784, 73_920, 192 * classes]
    assert sum(counts) == total
