"""BERT and GPT-2: torch's own layers with the weights of a file under published names."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import gelu

from hpcfl.adapters import base
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Adapter
from hpcfl.models.attention import causal
from hpcfl.models.bert import Bert
from hpcfl.models.gpt import GPT
from hpcfl.models.vit import ViT

WIDTH, HEADS, HIDDEN, DEPTH, WORDS, POSITIONS = 12, 3, 20, 2, 9, 7
SIZES = {"width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "depth": DEPTH}
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 0, 0, 0], [8, 0, 2, 8, 0]])
LAST = [4, 1, 3]  # the place of a text's last token that is not 0


def layers(**keys):
    """Layers of torch, of which all numbers are drawn."""
    found = []
    for _ in range(DEPTH):
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, batch_first=True, **keys
        )
        found.append(drawn(layer))
    return found


def drawn(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def named(module, prefix):
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}


def given(model, tensors, names, folder):
    """The model with what a file has."""
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    adapter = Adapter(kind="head", base=str(folder), names=names)
    of_base = base.read(adapter, model)
    model.load_state_dict(of_base.tensors, strict=False)
    return model.eval(), of_base.notes


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def of_bert(layer, prefix):
    """A layer's numbers under BERT's names, of old files in the norms."""
    attention = layer.self_attn
    tensors = {}
    parts = ("query", "key", "value")
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        tensors[f"{prefix}.attention.self.{part}.weight"] = weight.detach()
        tensors[f"{prefix}.attention.self.{part}.bias"] = bias.detach()
    tensors |= named(attention.out_proj, f"{prefix}.attention.output.dense")
    tensors |= named(layer.linear1, f"{prefix}.intermediate.dense")
    tensors |= named(layer.linear2, f"{prefix}.output.dense")
    tensors[f"{prefix}.attention.output.LayerNorm.gamma"] = layer.norm1.weight.detach()
    tensors[f"{prefix}.attention.output.LayerNorm.beta"] = layer.norm1.bias.detach()
    return tensors | named(layer.norm2, f"{prefix}.output.LayerNorm")


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
    tensors |= named(words, f"{name}.embeddings.word_embeddings")
    tensors |= named(places, f"{name}.embeddings.position_embeddings")
    tensors |= named(types, f"{name}.embeddings.token_type_embeddings")
    tensors |= named(norm, f"{name}.embeddings.LayerNorm")
    tensors |= named(pooler, f"{name}.pooler.dense")
    for number, layer in enumerate(encoder):
        tensors |= of_bert(layer, f"{name}.encoder.layer.{number}")
    model = Bert((5,), 4, vocabulary=WORDS, positions=POSITIONS, **SIZES, **keys)
    model, notes = given(model, tensors, name, tmp_path)
    assert notes == [
        "adapter.base: drawn, because the file has not: head.weight, head.bias",
        "adapter.base: not used of the file: cls.predictions.bias",
    ]
    x = norm(words(TOKENS) + places.weight[first : first + 5] + types.weight[0])
    for layer in encoder:
        x = layer(x, src_key_padding_mask=TOKENS == 0)
    assert_near(model.features(TOKENS), pooler(x[:, 0]).tanh())


def of_gpt2(layer, prefix):
    """A layer's numbers under GPT-2's names, its matrices transposed."""
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
    tensors |= named(layer.norm1, f"{prefix}.ln_1")
    return tensors | named(layer.norm2, f"{prefix}.ln_2")


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt_is_torchs_layers_with_a_causal_mask(tmp_path, prefix):
    torch.manual_seed(0)
    words = drawn(nn.Embedding(WORDS, WIDTH))
    places = drawn(nn.Embedding(POSITIONS, WIDTH))
    norm = drawn(nn.LayerNorm(WIDTH))
    decoder = layers(norm_first=True, activation=lambda x: gelu(x, approximate="tanh"))
    tensors = named(words, "wte") | named(places, "wpe") | named(norm, "ln_f")
    for number, layer in enumerate(decoder):
        tensors |= of_gpt2(layer, f"h.{number}")
    tensors = {f"{prefix}{name}": value for name, value in tensors.items()}
    model = GPT((5,), 4, vocabulary=WORDS, positions=POSITIONS, **SIZES)
    model, _ = given(model, tensors, "gpt2", tmp_path)
    x = words(TOKENS) + places.weight[:5]
    for layer in decoder:
        x = layer(x, src_mask=causal(5, x.device))
    expected = norm(x)
    assert_near(model.of_each_token(TOKENS), expected)
    assert_near(model.features(TOKENS), expected[range(3), LAST])


def of_vit(layer, prefix):
    """A layer's numbers under the names of transformers' vision transformer."""
    theirs = of_bert(layer, prefix)
    tensors = {}
    for name, value in theirs.items():
        if "LayerNorm" not in name:
            tensors[name.replace("attention.self", "attention.attention")] = value
    tensors |= named(layer.norm1, f"{prefix}.layernorm_before")
    return tensors | named(layer.norm2, f"{prefix}.layernorm_after")


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
    tensors |= named(patches, "vit.embeddings.patch_embeddings.projection")
    tensors |= named(norm, "vit.layernorm")
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


def test_what_is_behind_the_padding_changes_no_bit():
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
        (Bert, {"positions": 4}, "model.positions = 4 of .*'bert': a text here has 5"),
        (Bert, {"positions": 6, "first_position": 2}, "a text here has 7 tokens"),
        (GPT, {"positions": 4}, "model.positions = 4 of .*'gpt': a text here has 5"),
        (GPT, {"heads": 5}, "do not share model.width = 12"),
        (Bert, {"vocabulary": 10**7, "width": 1200}, "at most 1,000,000,000"),
    ],
)
def test_texts_and_sizes_that_do_not_fit_are_refused(plugin, keys, words):
    with pytest.raises(UserError, match=words):
        plugin((5,), 4, **{"vocabulary": WORDS, **SIZES, **keys})
