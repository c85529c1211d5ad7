"""Random layers with keys: their numbers, and the results of each layer."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hpcfl.models import RandomLayer
from hpcfl.models.layer_replacements import replace_layers, restore_layers
from hpcfl.models.random import draw_words, keyed, list_random_layers

DROPOUTS = [
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
]


def keys(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        -(2**31), 2**31, (*shape, 2), generator=generator, dtype=torch.int64
    ).int()


def mixed(word):
    """Return the same permutation of 32 bits, computed with Python's integers."""
    word ^= word >> 16
    word = word * 0x7FEB352D % 2**32
    word ^= word >> 15
    word = word * 0x846CA68B % 2**32
    return word ^ word >> 16


def test_words_are_those_of_exact_arithmetic():
    places = torch.tensor([0, 1, 7, 2**31 - 1, -(2**31), -1], dtype=torch.int32)
    for key in keys(20):
        first, second = (int(word) % 2**32 for word in key)
        expected = [
            mixed((mixed(place % 2**32 ^ first) + second) % 2**32)
            for place in places.tolist()
        ]
        assert [word % 2**32 for word in draw_words(key, places).tolist()] == expected


def test_masks_are_as_random_as_draws():
    """Shares, neighbours of a key, and one position of different keys are within 4
    standard deviations of independent draws. The keys are fixed, so the test is
    deterministic.
    """
    number, size, p = 400, 2048, 0.3
    places = torch.arange(size, dtype=torch.int32)
    threshold = round(p * 2**32) - 2**31
    dropped = torch.stack([draw_words(key, places) < threshold for key in keys(number)])
    off = (dropped.double() - p).numpy() / np.sqrt(p * (1 - p))
    assert abs(off.mean()) * np.sqrt(off.size) < 4
    for lag in (1, 2, 3, 16, 17, 1024):
        products = off[:, lag:] * off[:, :-lag]
        assert abs(products.mean()) * np.sqrt(products.size) < 4
    products = off[1:] * off[:-1]
    assert abs(products.mean()) * np.sqrt(products.size) < 4


def applied(layer, x, key=None, calls=1):
    """Return the results of a replaced layer in a step with a key, call after call."""
    layer = replace_layers(copy.deepcopy(layer))
    with keyed([layer], keys(1) if key is None else key):
        outputs = [layer(x) for _ in range(calls)]
    return outputs if calls > 1 else outputs[0]


def test_dropout_scales_kept_values_and_zeroes_the_rest():
    x = torch.randn(40, 50)
    output = applied(nn.Dropout(0.25), x)
    kept = output != 0
    torch.testing.assert_close(output[kept], x[kept] / 0.75)
    assert 0.7 < kept.double().mean() < 0.8


@pytest.mark.parametrize("kind", DROPOUTS)
def test_nothing_is_dropped_with_probability_zero_nor_in_evaluation(kind):
    x = torch.randn(3, 4, 5) if kind is nn.Dropout1d else torch.randn(3, 4, 5, 6)
    assert torch.equal(applied(kind(0.0), x), x)
    assert torch.equal(applied(kind(0.5).eval(), x), x)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout3d])
def test_everything_is_dropped_with_probability_one(kind):
    x = torch.randn(3, 4, 5).requires_grad_()
    output = applied(kind(1.0), x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert not output.any() and not gradient.any()


@pytest.mark.parametrize(
    ("kind", "shape", "channels"),
    [
        (nn.Dropout1d, (8, 30, 5), 2),
        (nn.Dropout1d, (200, 5), 1),
        (nn.Dropout2d, (8, 30, 3, 5), 2),
        (nn.Dropout3d, (8, 30, 2, 3, 5), 2),
    ],
)
def test_channels_are_dropped_whole(kind, shape, channels):
    output = applied(kind(0.5), torch.ones(shape)).flatten(channels)
    assert torch.equal(output.amin(dim=-1), output.amax(dim=-1))
    assert set(output.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_has_two_values_as_torchs_own(kind):
    """For ones the results are a·1 + b if kept and a·(−λα) + b if dropped, as in torch."""
    torch.manual_seed(3)
    x = torch.ones(50, 40, 2)
    own, torchs = applied(kind(0.3), x), kind(0.3)(x)
    torch.testing.assert_close(own.unique(), torchs.unique())
    assert abs(own.mean() - torchs.mean()) < 0.1
    whole = own.flatten(2)
    if kind is nn.FeatureAlphaDropout:
        assert torch.equal(whole[..., 0], whole[..., 1])


def test_masks_of_calls_layers_and_keys_differ():
    x = torch.ones(1, 200)
    first, second = applied(nn.Dropout(0.5), x, calls=2)
    other_key = applied(nn.Dropout(0.5), x, keys(1, seed=1))
    layers = replace_layers(nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.5)]))
    with keyed(list_random_layers(layers), keys(2)):
        outputs = [layer(x) for layer in layers]
    found = [first, second, other_key, outputs[1]]
    assert torch.equal(outputs[0], first)
    for position, one in enumerate(found):
        for other in found[position + 1 :]:
            assert 0.3 < (one == other).double().mean() < 0.7


def test_a_module_outside_of_a_step_is_torchs_own():
    """This includes a module that was in steps before; it has its original class."""

    class Own(nn.Dropout):
        pass

    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), Own(0.5))
    names = list(module.state_dict())
    before, replaced = list(module), replace_layers(module)
    assert list(replaced) == before and list(replaced.state_dict()) == names
    assert isinstance(replaced[1], nn.Dropout)
    assert len(list_random_layers(replaced)) == 1
    x = torch.ones(3, 4)
    torch.manual_seed(0)
    drawn = replaced[1](x)
    torch.manual_seed(0)
    assert torch.equal(drawn, nn.Dropout(0.5)(x))
    assert type(restore_layers(replaced)[1]) is nn.Dropout
    assert RandomLayer().uniform(3).shape == (3,)
