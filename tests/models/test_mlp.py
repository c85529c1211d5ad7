import pytest
import torch

from hpcfl.models.mlp import plugin


@pytest.mark.parametrize("hidden", [[], [7], [16, 8, 4]])
def test_hidden_layers_have_the_widths_that_are_asked_for(hidden):
    model = plugin((3, 4), 6, hidden=hidden)
    x = torch.randn(5, 3, 4)
    assert [layer.out_features for layer in model.children()] == [*hidden, 6]
    assert list(model.children())[-1] is model.head
    assert model.features(x).shape == (5, hidden[-1] if hidden else 12)
    assert torch.equal(model(x), model.head(model.features(x)))
