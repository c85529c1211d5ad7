"""Layers of torch, with their parameters under the names of published files."""

import torch
from safetensors.torch import save_file
from torch import nn

from hpcfl.adapters import base
from hpcfl.experiment.sections import Adapter

WIDTH, HEADS, HIDDEN, DEPTH, WORDS, POSITIONS = 12, 3, 20, 2, 9, 7
SIZES = {"width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "depth": DEPTH}
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 0, 0, 0], [8, 0, 2, 8, 0]])
LAST = [4, 1, 3]  # position of a text's last token other than 0


def layers(**keys):
    """Return layers of torch with random parameters."""
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


def prefix_names(module, prefix):
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}


def given(model, tensors, names, folder):
    """Return the model with the parameters of a file."""
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    adapter = Adapter(kind="head", base=str(folder), names=names)
    of_base = base.read(adapter, model)
    model.load_state_dict(of_base.tensors, strict=False)
    return model.eval(), of_base.notes


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def of_bert(layer, prefix):
    """Return a layer's parameters under BERT's names, with the norms' names of old
    files.
    """
    attention = layer.self_attn
    tensors = {}
    parts = ("query", "key", "value")
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        tensors[f"{prefix}.attention.self.{part}.weight"] = weight.detach()
        tensors[f"{prefix}.attention.self.{part}.bias"] = bias.detach()
    tensors |= prefix_names(attention.out_proj, f"{prefix}.attention.output.dense")
    tensors |= prefix_names(layer.linear1, f"{prefix}.intermediate.dense")
    tensors |= prefix_names(layer.linear2, f"{prefix}.output.dense")
    tensors[f"{prefix}.attention.output.LayerNorm.gamma"] = layer.norm1.weight.detach()
    tensors[f"{prefix}.attention.output.LayerNorm.beta"] = layer.norm1.bias.detach()
    return tensors | prefix_names(layer.norm2, f"{prefix}.output.LayerNorm")
