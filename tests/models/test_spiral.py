"""The spiral's network."""

import torch

from hpcfl.models.spiral import plugin


def test_features_fill_the_plane():
    """There is no ReLU behind the last of them, and no bias in the head."""
    torch.manual_seed(0)
    model = plugin((2,), 6)
    x = 9 * torch.randn(50, 2)
    features = model.features(x)
    assert features.shape == (50, 2) and features.min() < 0
    assert torch.equal(model(x), features @ model.head.weight.T)
