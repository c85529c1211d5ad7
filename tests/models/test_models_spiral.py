"""FedNH's network for its spiral."""

import torch

from hpcfl.models.spiral import plugin


def test_features_are_in_the_plane_and_may_be_negative():
    """All weights are 1, those of the last layer −1: for the point (1, 2) each of 16
    units is 3, each of 8 is 48, each of 4 is 384, and both features are −1536.
    """
    model = plugin((2,), 6)
    assert sum(parameter.numel() for parameter in model.parameters()) == 242
    for name, parameter in model.named_parameters():
        parameter.data.fill_(float(name.endswith("weight")))
    model.fc4.weight.data.neg_()
    point = torch.tensor([[1.0, 2.0]])
    assert model.features(point).tolist() == [[-1536, -1536]]
    assert model(point).tolist() == [[-3072] * 6]
