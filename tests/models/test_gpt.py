"""GPT-2, compared with torch's layers and a file's weights under published names."""

import pytest
import torch
from published import (
    LAST,
    POSITIONS,
    SIZES,
    TOKENS,
    WIDTH,
    WORDS,
    assert_near,
    drawn,
    given,
    layers,
    prefix_names,
)
from torch import nn
from torch.nn.functional import gelu

from hpcfl.models.attention import make_causal_mask
from hpcfl.models.gpt import GPT


def of_gpt2(layer, prefix):
    """Return a layer's parameters under GPT-2's names, with transposed matrices."""
    attention = layer.self_attn
    matrices = {
        "attn.c_attn": (attention.in_proj_weight, attention.in_proj_bias),
        "attn.c_proj": (attention.out_proj.weight, attention.out_proj.bias),
        "mlp.c_fc": (layer.linear1.weight, layer.linear1.bias),
        "mlp.c_proj": (layer.linear2.weight, layer.linear2.bias),
    }
    tensors = {}
    for name, (weight, bias) in matrices.items():
        tensors[f"{prefix}.{name}.weight"] = weight.detach().T
        tensors[f"{prefix}.{name}.bias"] = bias.detach()
    tensors |= prefix_names(layer.norm1, f"{prefix}.ln_1")
    return tensors | prefix_names(layer.norm2, f"{prefix}.ln_2")


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt_is_torchs_layers_with_a_causal_mask(tmp_path, prefix):
    torch.manual_seed(0)
    words = drawn(nn.Embedding(WORDS, WIDTH))
    places = drawn(nn.Embedding(POSITIONS, WIDTH))
    norm = drawn(nn.LayerNorm(WIDTH))
    decoder = layers(norm_first=True, activation=lambda x: gelu(x, approximate="tanh"))
    tensors = (
        prefix_names(words, "wte")
        | prefix_names(places, "wpe")
        | prefix_names(norm, "ln_f")
    )
    for number, layer in enumerate(decoder):
        tensors |= of_gpt2(layer, f"h.{number}")
    tensors = {f"{prefix}{name}": value for name, value in tensors.items()}
    model = GPT((5,), 4, vocabulary=WORDS, positions=POSITIONS, **SIZES)
    model, _ = given(model, tensors, "gpt2", tmp_path)
    x = words(TOKENS) + places.weight[:5]
    for layer in decoder:
        x = layer(x, src_mask=make_causal_mask(5, x.device))
    expected = norm(x)
    assert_near(model.compute_token_features(TOKENS), expected)
    assert_near(model.features(TOKENS), expected[range(3), LAST])
