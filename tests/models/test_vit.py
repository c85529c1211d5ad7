"""Vision transformer, compared with torch's layers and a file's weights."""

import torch
from published import (
    SIZES,
    WIDTH,
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

from hpcfl.models.vit import ViT


def of_vit(layer, prefix):
    """Return a layer's parameters under the names of the vision transformer in
    ``transformers``.
    """
    theirs = of_bert(layer, prefix)
    tensors = {}
    for name, value in theirs.items():
        if "LayerNorm" not in name:
            tensors[name.replace("attention.self", "attention.attention")] = value
    tensors |= prefix_names(layer.norm1, f"{prefix}.layernorm_before")
    return tensors | prefix_names(layer.norm2, f"{prefix}.layernorm_after")


def test_vit_is_torchs_layers_over_a_convolution(tmp_path):
    torch.manual_seed(0)
    token, places = torch.randn(1, 1, WIDTH), torch.randn(1, 5, WIDTH)
    patches = drawn(nn.Conv2d(3, WIDTH, 4, stride=4))
    encoder = layers(norm_first=True, activation=gelu, layer_norm_eps=1e-12)
    norm = drawn(nn.LayerNorm(WIDTH, 1e-12))
    tensors = {
        "vit.embeddings.cls_token": token,
        "vit.embeddings.position_embeddings": places,
    }
    tensors |= prefix_names(patches, "vit.embeddings.patch_embeddings.projection")
    tensors |= prefix_names(norm, "vit.layernorm")
    for number, layer in enumerate(encoder):
        tensors |= of_vit(layer, f"vit.encoder.layer.{number}")
    model = ViT((3, 8, 8), 4, **SIZES, head_width=4, bias=True, norm_eps=1e-12)
    model, _ = given(model, tensors, "vit", tmp_path)
    images = torch.randn(2, 3, 8, 8)
    x = patches(images).flatten(2).transpose(1, 2)
    x = torch.cat([token.expand(2, -1, -1), x], dim=1) + places
    for layer in encoder:
        x = layer(x)
    assert_near(model.features(images), norm(x)[:, 0])


def test_images_that_are_not_made_of_whole_patches_are_refused():
    with expect_refusal("'vit' .* 4×4; .* 3×8×6$"):
        ViT((3, 8, 6), 4)
