"""BERT and RoBERTa, compared with torch's layers and a file's weights under published
names.
"""

import pytest
import torch
from published import (
    POSITIONS,
    SIZES,
    TOKENS,
    WIDTH,
    WORDS,
    assert_near,
    drawn,
    given,
    layers,
    of_bert,
    prefix_names,
)
from refusals import expect_refusal
from torch import nn
from torch.nn.functional import gelu

from hpcfl.models.bert import Bert
from hpcfl.models.gpt import GPT


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("bert", {}),
        ("roberta", {"first_position": 2, "types": 1, "norm_eps": 1e-5}),
    ],
)
def test_bert_is_torchs_encoder(tmp_path, name, keys):
    """Padding is 0 in both cases, although RoBERTa's is 1."""
    torch.manual_seed(0)
    eps, first = keys.get("norm_eps", 1e-12), keys.get("first_position", 0)
    words = drawn(nn.Embedding(WORDS, WIDTH))
    places = drawn(nn.Embedding(POSITIONS, WIDTH))
    types = drawn(nn.Embedding(keys.get("types", 2), WIDTH))
    norm = drawn(nn.LayerNorm(WIDTH, eps))
    encoder = layers(activation=gelu, layer_norm_eps=eps)
    pooler = drawn(nn.Linear(WIDTH, WIDTH))
    tensors = {"cls.predictions.bias": torch.zeros(WORDS)}
    tensors |= prefix_names(words, f"{name}.embeddings.word_embeddings")
    tensors |= prefix_names(places, f"{name}.embeddings.position_embeddings")
    tensors |= prefix_names(types, f"{name}.embeddings.token_type_embeddings")
    tensors |= prefix_names(norm, f"{name}.embeddings.LayerNorm")
    tensors |= prefix_names(pooler, f"{name}.pooler.dense")
    for number, layer in enumerate(encoder):
        tensors |= of_bert(layer, f"{name}.encoder.layer.{number}")
    model = Bert((5,), 4, vocabulary=WORDS, positions=POSITIONS, **SIZES, **keys)
    model, notes = given(model, tensors, name, tmp_path)
    assert notes[0].endswith(": head.weight, head.bias")
    assert notes[1].endswith(": cls.predictions.bias")
    x = norm(words(TOKENS) + places.weight[first : first + 5] + types.weight[0])
    for layer in encoder:
        x = layer(x, src_key_padding_mask=TOKENS == 0)
    assert_near(model.features(TOKENS), pooler(x[:, 0]).tanh())


def test_padding_changes_no_feature():
    torch.manual_seed(0)
    keys = {"vocabulary": WORDS, **SIZES}
    short, long = TOKENS[1:2, :3], TOKENS[1:2]
    for plugin in (Bert, GPT):
        model = plugin((5,), 4, **keys).eval()
        torch.testing.assert_close(
            model.features(short), model.features(long), rtol=0, atol=1e-6
        )
        assert model.features(torch.zeros(1, 5, dtype=torch.long)).isfinite().all()


@pytest.mark.parametrize(
    ("plugin", "keys", "words"),
    [
        (
            Bert,
            {"positions": 6, "first_position": 2},
            "model.positions = 6 of .*'bert': .* 5 .* 2;",
        ),
        (GPT, {"positions": 4}, "model.positions = 4 of .*'gpt': .* 5 "),
    ],
)
def test_texts_and_sizes_that_do_not_fit_are_refused(plugin, keys, words):
    with expect_refusal(words):
        plugin((5,), 4, **{"vocabulary": WORDS, **SIZES, **keys})
