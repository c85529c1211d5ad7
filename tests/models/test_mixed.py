"""Models whose products are of bfloat16 numbers, and what of them is float32."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hpcfl import adapters
from hpcfl.adapters import lora
from hpcfl.clients.execution import BatchedKernel, SerialKernel, Work
from hpcfl.clients.losses import Batch
from hpcfl.experiment.sections import Adapter
from hpcfl.models import mixed
from hpcfl.models.mlp import MLP
from hpcfl.models.replaced import replace_layers
from hpcfl.models.vit import ViT
from hpcfl.rows import constants
from hpcfl.rows.layout import of_parameters

LANES = 5


def vit():
    sizes = {"width": 16, "depth": 1, "heads": 2, "head_width": 8, "hidden": 24}
    return ViT((1, 8, 8), 4, patch=4, **sizes, dropout=0.0)


def held(kind, in_bfloat16=True):
    """A model above a frozen base, with corrections that are not zero."""
    torch.manual_seed(3)
    module = {"vit": vit, "mlp": lambda: MLP((64,), 4, hidden=(24,))}[kind]()
    targets = ["hidden*"] if kind == "mlp" else []
    module = adapters.adapt(module, Adapter(kind="lora", targets=targets, rank=2))
    module = replace_layers(module)
    for layer in lora.layers(module).values():
        nn.init.normal_(layer.B, std=0.1)
    values = constants.frozen(module)
    if in_bfloat16:
        module, values = mixed.mix(module), mixed.stored(module, values)
    return constants.hold(module, values)


def samples(kind, count, lanes=LANES):
    shape = (1, 8, 8) if kind == "vit" else (64,)
    return torch.randn(lanes, count, *shape), torch.randint(4, (lanes, count))


def loss(model, batch, lane):
    logits = model(batch.x)
    assert logits.dtype == torch.float32
    return cross_entropy(logits, batch.y)


def gradients(kernel, lanes, x, y, times=1):
    names = of_parameters(kernel.module).names
    session = kernel.begin(Work(lanes, names, loss))
    for _ in range(times):
        found, losses = session.gradients(slice(0, len(x)), Batch(x, y), {})
    return [*found.values(), losses]


def test_what_comes_out_is_float32_and_products_are_of_bfloat16():
    """x·w = 257/256 · 257/256, of which bfloat16 keeps 1 · 1."""
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


class Scaled(nn.Module):
    """Whose parts take more than a sample."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = Times()

    def features(self, images, *, scale=1.0):
        return scale * self.body(images)

    def forward(self, images, scale=1.0):
        return self.head(features=self.features(images, scale=scale), scale=scale)


class Times(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, features, scale):
        return scale * super().forward(features)


def test_what_a_model_takes_beside_samples_is_passed_on():
    x, module = torch.randn(4, 3), mixed.mix(Scaled())
    doubled = module(images=x, scale=2.0)
    assert doubled.dtype == torch.float32
    assert torch.equal(doubled, module.head(2 * module.features(x), scale=2.0))
    assert torch.equal(module(x, 2.0), doubled)


def test_weights_of_the_base_are_stored_in_bfloat16_and_what_is_trained_is_not():
    module, exact = held("vit"), held("vit", in_bfloat16=False)
    base = constants.collect(module)
    short = {name for name, value in base.items() if value.dtype == torch.bfloat16}
    assert short == {
        name
        for name, layer in constants.collect(exact).items()
        if name.endswith("weight") and layer.dim() == 2
    }
    assert {"patches.linear.weight", "block1.linear1.weight"} <= short
    of_short = sum(base[name].numel() for name in short)
    assert constants.size(exact) - constants.size(module) == 2 * of_short
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    for name, value in constants.collect(exact).items():
        rounded = value.bfloat16() if name in short else value
        assert torch.equal(base[name], rounded)
    plain = mixed.restore(constants.whole(module))
    assert {value.dtype for value in plain.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, count", [("vit", 1), ("vit", 5), ("mlp", 1), ("mlp", 16)]
)
def test_a_lane_has_its_bits_beside_others(kind, count):
    module = held(kind)
    lanes = {
        name: value.detach() + 0.1 * torch.randn(LANES, *value.shape)
        for name, value in module.named_parameters()
    }
    x, y = samples(kind, count)
    kernel = BatchedKernel(module, LANES)
    whole = gradients(kernel, lanes, x, y)
    assert not kernel.dependent
    assert {part.dtype for part in whole} == {torch.float32}
    for chosen in (slice(0, 1), slice(3, 4), slice(1, 4)):
        mine = {name: value[chosen].clone() for name, value in lanes.items()}
        few = gradients(BatchedKernel(module, LANES), mine, x[chosen], y[chosen])
        for one, other in zip(whole, few, strict=True):
            assert torch.equal(one[chosen], other)


def test_both_kernels_are_as_near_to_float32_as_bfloat16_is():
    """2⁻⁸ of a number is lost in each product."""
    found = []
    for in_bfloat16 in (False, True):
        module = held("vit", in_bfloat16)
        lanes = {
            name: value.detach().clone()[None]
            for name, value in module.named_parameters()
        }
        torch.manual_seed(4)
        x, y = samples("vit", 7, lanes=1)
        for kernel in (BatchedKernel(module, 2), SerialKernel(copy.deepcopy(module))):
            parts = gradients(kernel, lanes, x, y)
            found.append(torch.cat([part.flatten() for part in parts]))
    exact, _, *rounded = found
    for one in rounded:
        assert 0 < (one - exact).norm() < 2**-6 * exact.norm()
