"""Layers of torch that cannot run for many clients in one call, replaced by equal ones
that can, in a user's module as well.

A layer stays the same object, with its parameters, names and hooks: only its class is
another one, which inherits from torch's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpcfl.models._attention import ATTENTION, gelu, gelu_by_tanh
from hpcfl.models._random import KEYED
from hpcfl.models._recurrent import RECURRENT, in_lanes


class Embedding(nn.Embedding):
    """torch's, whose padding is left out of the gradient by a mask: under vmap torch
    leaves it out for the first client alone.
    """

    def forward(self, input: Tensor) -> Tensor:
        changed = self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        if self.padding_idx is None or changed:
            return super().forward(input)
        vectors = functional.embedding(input, self.weight)
        padding = (input == self.padding_idx)[..., None]
        return torch.where(padding, vectors.detach(), vectors)


class GELU(nn.GELU):
    """torch's, by a formula that is the same for all numbers of a tensor."""

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
    """The same module, whose layers run side by side where they could not."""
    for layer in module.modules():
        # Not of subclasses: what these compute instead only they know.
        layer.__class__ = REPLACED.get(type(layer), type(layer))
    return module


def restore_layers(module: nn.Module) -> nn.Module:
    """The same module with torch's own layers again."""
    plain = {replaced: original for original, replaced in REPLACED.items()}
    for layer in module.modules():
        layer.__class__ = plain.get(type(layer), type(layer))
    return module


@contextmanager
def side_by_side() -> Iterator[None]:
    """A block in which many clients run in one call.

    A user's ``scaled_dot_product_attention`` is computed by matrix products there: of
    its other forms some go through the clients in a loop.
    """
    with sdpa_kernel(SDPBackend.MATH), in_lanes():
        yield
