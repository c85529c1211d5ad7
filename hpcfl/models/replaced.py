"""Replacements for layers of torch that cannot run for many clients in one call.

They replace layers in a user's module as well. A layer remains the same object, with
its parameters, names and hooks. Only its class changes to a subclass of torch's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpcfl.models.attention import ATTENTION, gelu, gelu_by_tanh
from hpcfl.models.random import KEYED
from hpcfl.models.recurrent import RECURRENT, in_lanes


class Embedding(nn.Embedding):
    """torch's embedding, with the padding's gradient removed by a mask.

    Under vmap torch removes it for the first client alone.
    """

    def forward(self, input: Tensor) -> Tensor:
        changed = self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        if self.padding_idx is None or changed:
            return super().forward(input)
        vectors = functional.embedding(input, self.weight)
        padding = (input == self.padding_idx)[..., None]
        return torch.where(padding, vectors.detach(), vectors)


class GELU(nn.GELU):
    """torch's GELU, by a formula that is the same for all numbers of a tensor."""

    def forward(self, input: Tensor) -> Tensor:
        formula = gelu if self.approximate == "none" else gelu_by_tanh
        return formula(input)


REPLACED: dict[type[nn.Module], type[nn.Module]] = {
    **KEYED,
    **ATTENTION,
    **RECURRENT,
    nn.Embedding: Embedding,
    nn.GELU: GELU,
}


def replace_layers(module: nn.Module) -> nn.Module:
    """Replace layers that cannot run side by side, and return the module."""
    for layer in module.modules():
        # Subclasses are not replaced, because they may compute something else.
        layer.__class__ = REPLACED.get(type(layer), type(layer))
    return module


def restore_layers(module: nn.Module) -> nn.Module:
    """Restore torch's own layers, and return the module."""
    plain = {replaced: original for original, replaced in REPLACED.items()}
    for layer in module.modules():
        layer.__class__ = plain.get(type(layer), type(layer))
    return module


@contextmanager
def side_by_side() -> Iterator[None]:
    """Run many clients in one call within a block.

    In the block a user's ``scaled_dot_product_attention`` uses matrix products. Some of
    its other backends process the clients in a loop.
    """
    with sdpa_kernel(SDPBackend.MATH), in_lanes():
        yield
