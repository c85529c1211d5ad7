"""Replacements of torch's layers: the same results with the same weights, and the same
parameters under the same names.
"""

import copy
import importlib
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcfl.models.layer_replacements import (
    FILES,
    is_fast_channels_last,
    replace_layers,
)
from hpcfl.models.random import keyed, list_random_layers

# torch's message for an encoder with an odd number of heads
NESTED = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
WIDTH, HEADS, BATCH, TOKENS, OTHERS = 12, 3, 2, 5, 4


def pair(layer):
    """Return torch's layer and its replacement for lanes."""
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases are zero initially
    return layer.eval(), replace_layers(copy.deepcopy(layer)).eval()


def equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def attention(**keys):
    return nn.MultiheadAttention(WIDTH, HEADS, 0.3, **keys)


ATTENTIONS = {
    "tokens first": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other widths": {"kdim": 7, "vdim": 9},
    "appended": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("keys", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_is_torchs(keys, unbatched):
    theirs, ours = pair(attention(**keys))

    def tokens(number, width):
        whole = torch.randn(BATCH, number, width)
        if unbatched:
            return whole[0]
        return whole if keys.get("batch_first") else whole.transpose(0, 1)

    given = [
        tokens(TOKENS, WIDTH),
        tokens(OTHERS, keys.get("kdim", WIDTH)),
        tokens(OTHERS, keys.get("vdim", WIDTH)),
    ]
    hidden = torch.tensor([[False, False, True, False], [False, True, True, False]])
    added = torch.randn(TOKENS, OTHERS)
    by_head = torch.randn(HEADS if unbatched else BATCH * HEADS, TOKENS, OTHERS)
    for masks in (
        {},
        {"key_padding_mask": hidden[0] if unbatched else hidden},
        {"attn_mask": added > 1, "average_attn_weights": False, "is_causal": True},
        {"attn_mask": by_head, "need_weights": False},
        {"attn_mask": added, "key_padding_mask": added[0] if unbatched else added[:2]},
    ):
        (expected, their_weights), (got, weights) = (
            layer(*given, **masks) for layer in (theirs, ours)
        )
        equal(got, expected)
        assert (weights is None) == (their_weights is None)
        if weights is not None:
            equal(weights, their_weights)


def test_a_hint_without_a_mask_is_refused_as_by_torch():
    x = torch.randn(3, 1, WIDTH)
    for layer in pair(attention()):
        with pytest.raises(RuntimeError, match="attn_mask"):
            layer(x, x, x, is_causal=True)


LAYERS = {
    "encoder layer": lambda **keys: nn.TransformerEncoderLayer(WIDTH, HEADS, 7, **keys),
    "decoder layer": lambda **keys: nn.TransformerDecoderLayer(WIDTH, HEADS, 7, **keys),
    "encoder": lambda **keys: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 7, **keys), 2, nn.LayerNorm(WIDTH)
    ),
    "decoder": lambda **keys: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, 7, **keys), 2
    ),
}
FORMS = [
    {"batch_first": True},
    {"norm_first": True, "activation": "gelu"},
    {"activation": functional.tanh, "bias": False},
]


@NESTED
@pytest.mark.parametrize("keys", FORMS, ids=["post", "pre", "no bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_replaced_of_transformers_are_torchs(name, keys):
    theirs, ours = pair(LAYERS[name](**keys))
    tokens = (BATCH, TOKENS) if keys.get("batch_first") else (TOKENS, BATCH)
    x, memory = torch.randn(2, *tokens, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
    given, what = ([x], "src") if "encoder" in name else ([x, memory], "tgt")
    whole = {"encoder": "mask"}.get(name, f"{what}_mask")
    for masks in ({}, {whole: mask}, {f"{what}_key_padding_mask": torch.eye(2, 5) > 0}):
        with torch.no_grad():  # torch then uses one operator for all of it
            equal(ours(*given, **masks), theirs(*given, **masks))


def test_dropped_weights_are_those_of_a_key():
    """For ones over four tokens each weight is 1/4, and 1/2 if half of them drop."""
    layer = replace_layers(attention())
    layer.dropout = 0.5
    x = torch.ones(OTHERS, 50, WIDTH)
    key = torch.tensor([[3, 4]], dtype=torch.int32)
    drawn = []
    for _ in range(2):
        with keyed(list_random_layers(layer), key):
            drawn.append(layer(x, x, x, average_attn_weights=False)[1])
    assert torch.equal(*drawn)
    kept = drawn[0] > 0
    assert 0.45 < kept.double().mean() < 0.55
    torch.testing.assert_close(drawn[0][kept], torch.full((kept.sum(),), 0.5))
    layer.dropout = 1.0
    with keyed(list_random_layers(layer), key):
        assert not layer(x, x, x)[1].any()


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_padding_of_an_embedding_has_no_gradient_and_keeps_its_vector(
    by_frequency, repeated
):
    layer = nn.Embedding(6, 4, padding_idx=2, scale_grad_by_freq=by_frequency)
    theirs, ours = pair(layer)
    tokens = torch.tensor([[1, 2, 2], [5, 2, 1]]).repeat(1, repeated)
    gradients = []
    for layer in (theirs, ours):
        layer(tokens).square().sum().backward()
        gradients.append(layer.weight.grad)
    assert torch.equal(theirs(tokens), ours(tokens)) and torch.equal(*gradients)
    assert not gradients[1][2].any() and gradients[1][1].all()


def test_an_embedding_that_changes_its_vectors_is_torchs_own():
    theirs, ours = pair(nn.Embedding(6, 4, padding_idx=2, max_norm=0.1))
    tokens = torch.tensor([1, 2])
    assert torch.equal(theirs(tokens), ours(tokens))
    assert theirs.weight[1].norm() < 0.11 < theirs.weight[0].norm()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_torchs(approximate):
    theirs, ours = pair(nn.GELU(approximate))
    x = torch.linspace(-9, 9, 1001)
    equal(ours(x), theirs(x))


@pytest.mark.parametrize(
    "name", [name for name, file in FILES.items() if file == "attention"]
)
def test_a_replacement_takes_the_arguments_of_torchs_layer(name):
    """The arguments have the same order and the same defaults."""
    ours = importlib.import_module(f"hpcfl.models.{FILES[name]}")
    expected, got = (
        [
            (argument.name, argument.default)
            for argument in inspect.signature(kind.forward).parameters.values()
        ]
        for kind in (getattr(torch.nn, name), getattr(ours, name))
    )
    assert got == expected


@pytest.mark.parametrize(
    ("layer", "fast"),
    [
        (nn.Linear(3, 2), False),
        (nn.Conv2d(3, 4, 3), True),
        (nn.Conv2d(3, 4, 1, stride=2), False),
        (nn.Conv2d(8, 4, 1, stride=2), True),
    ],
)
def test_convolutions_are_laid_out_channels_last_where_that_is_safe(layer, fast):
    assert is_fast_channels_last(nn.Sequential(layer)) == fast
