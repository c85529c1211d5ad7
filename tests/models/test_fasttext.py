"""FastText."""

import torch

from hpcfl.models.fasttext import plugin


def test_padding_counts_in_the_mean_and_never_moves():
    model = plugin((8,), 4, vocabulary=9)
    x = torch.tensor([[3, 5, 0, 0, 0, 0, 0, 0]])
    mean = (model.embedding.weight[3] + model.embedding.weight[5]) / 8
    torch.testing.assert_close(model.features(x)[0], model.hidden(mean))
    model(x).sum().backward()
    assert (model.embedding.weight[0] == 0).all()
    assert (model.embedding.weight.grad[0] == 0).all()
    assert (model.embedding.weight.grad[3] != 0).any()
