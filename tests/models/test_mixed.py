"""Models with products in bfloat16, and their parts in float32."""

import torch
from torch import nn

from hpcfl.adapters import kinds, lora
from hpcfl.experiment.sections import Adapter
from hpcfl.models import mixed
from hpcfl.models.layer_replacements import replace_layers
from hpcfl.models.mlp import MLP
from hpcfl.models.vit import ViT
from hpcfl.rows import constants


def vit():
    sizes = {"width": 16, "depth": 1, "heads": 2, "head_width": 8, "hidden": 24}
    return ViT((1, 8, 8), 4, patch=4, **sizes, dropout=0.0)


def make_frozen(kind, in_bfloat16=True):
    """Return a model above a frozen base, with non-zero corrections."""
    torch.manual_seed(3)
    module = {"vit": vit, "mlp": lambda: MLP((64,), 4, hidden=(24,))}[kind]()
    targets = ["hidden*"] if kind == "mlp" else []
    module = kinds.adapt(module, Adapter(kind="lora", targets=targets, rank=2))
    module = replace_layers(module)
    for layer in lora.find_layers(module).values():
        nn.init.normal_(layer.B, std=0.1)
    values = constants.copy_frozen(module)
    if in_bfloat16:
        module, values = mixed.mix(module), mixed.stored(module, values)
    return constants.hold(module, values)


def test_products_are_in_bfloat16_and_outputs_in_float32():
    """x·w = 257/256 · 257/256, which bfloat16 rounds to 1 · 1."""
    module = MLP((1,), 2, hidden=())
    with torch.no_grad():
        module.head.weight.fill_(257 / 256)
        module.head.bias.zero_()
    x = torch.full((1, 1), 257 / 256)
    assert module(x)[0, 0] == (257 / 256) ** 2
    mixed.mix(module)
    assert module(x).dtype == torch.float32 and module(x)[0, 0] == 1
    assert torch.equal(module.head(module.features(x)), module(x))
    plain = mixed.restore(module)
    assert type(plain) is MLP and type(plain.head) is nn.Linear
    assert plain(x)[0, 0] == (257 / 256) ** 2


def test_only_frozen_weights_are_stored_in_bfloat16():
    module, exact = make_frozen("vit"), make_frozen("vit", in_bfloat16=False)
    base = constants.collect(module)
    short = {name for name, value in base.items() if value.dtype == torch.bfloat16}
    assert short == {
        name
        for name, layer in constants.collect(exact).items()
        if name.endswith("weight") and layer.dim() == 2
    }
    assert {"patches.linear.weight", "block1.linear1.weight"} <= short
    of_short = sum(base[name].numel() for name in short)
    assert constants.count_bytes(exact) - constants.count_bytes(module) == 2 * of_short
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    for name, value in constants.collect(exact).items():
        rounded = value.bfloat16() if name in short else value
        assert torch.equal(base[name], rounded)
    plain = mixed.restore(constants.release(module))
    assert {value.dtype for value in plain.parameters()} == {torch.float32}
