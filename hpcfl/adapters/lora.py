"""LoRA: a frozen layer with a trained correction of low rank (adapters.md §3).

Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022: y = W₀x + b
+ s·B·A·x with A [r, in], B [out, r] and s = α/r. B of a linear layer and A of an
embedding start at zero, so that the model starts equal to its base. rsLoRA
(Kalajdzievski, 2023) scales by s = α/√r.

A layer remains the same object, with its parameters, names and hooks. Only its class
changes, to a subclass of torch's class with the parameters ``A`` and ``B``. A wrapper
would change the names. Merging would have to remove a hook from a copied module, which
torch cannot do.
"""

import math
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.adapters.kinds import find_called_layers
from hpcfl.errors import UserError, suggest
from hpcfl.experiment.sections import Adapter
from hpcfl.models.layer_replacements import Embedding
from hpcfl.rows import layout

# Layers with a correction if ``adapter.targets`` is empty: queries and values, or one
# layer for queries, keys and values, by their usual names.
QUERIES_AND_VALUES = (
    "q",
    "v",
    "qkv",
    "query",
    "value",
    "q_proj",
    "v_proj",
    "q_lin",
    "v_lin",
    "c_attn",
)


class LowRank(nn.Module):
    """Mixin for the class of an adapted layer.

    Attributes:
        A: Matrix [rank, in].
        B: Matrix [out, rank].
        weight: Weight of the adapted layer.
        factor: Factor s of the correction.
    """

    A: Tensor
    B: Tensor
    weight: Tensor
    factor: float

    def compute_correction(self) -> Tensor:
        """Return the correction of the layer's weight, in the weight's shape."""
        raise NotImplementedError


class LowRankLinear(LowRank, nn.Linear):
    """An ``nn.Linear`` with a correction, and dropout on the input of A."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x)
        dropout = getattr(self, "dropout", None)
        entering = x if dropout is None else dropout(x)
        low = self.factor * functional.linear(entering, self.A)
        return output + functional.linear(low, self.B)

    def compute_correction(self) -> Tensor:
        return self.factor * (self.B @ self.A)


class LowRankEmbedding(LowRank, Embedding):
    """An ``nn.Embedding`` with a correction of all rows except the padding's."""

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = super().forward(tokens)
        low = functional.embedding(tokens, self.A.T)
        if self.padding_idx is not None:
            low = low * (tokens != self.padding_idx)[..., None]
        return output + self.factor * functional.linear(low, self.B)

    def compute_correction(self) -> Tensor:
        added = self.factor * (self.B @ self.A).T
        if self.padding_idx is not None:
            added[self.padding_idx] = 0
        return added


ADAPTED: dict[type[nn.Module], type[LowRank]] = {
    nn.Linear: LowRankLinear,
    nn.Embedding: LowRankEmbedding,
}


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Add a low-rank correction to each target and return the names of the trained
    parameters.

    Raises:
        UserError: There is no target, or the rank is larger than a layer.
    """
    names = set[str]()
    for name in _find_targets(module, adapter):
        layer = module.get_submodule(name)
        correct(layer, name, adapter)
        # The matrix of zeros must be trained, because otherwise all gradients of the
        # other matrix are zero.
        zeros = "B" if isinstance(layer, nn.Linear) else "A"
        names |= {f"{name}.A", f"{name}.B"} if adapter.train_a else {f"{name}.{zeros}"}
    return names


def _find_targets(module: nn.Module, adapter: Adapter) -> list[str]:
    """Return the names of the layers to correct.

    Raises UserError if there are none.
    """
    possible = []
    for name, layer in find_called_layers(module).items():
        if type(layer) in ADAPTED:
            possible.append(name)
    if adapter.targets:
        return layout.match_names(adapter.targets, possible, "adapter.targets")
    found = [name for name in possible if name.rpartition(".")[2] in QUERIES_AND_VALUES]
    if not found:
        raise UserError(
            "adapter.targets: no layer of the model has a usual name of queries or "
            f"values; name the layers to adapt{suggest('', possible)}"
        )
    return found


def correct(layer: nn.Module, name: str, adapter: Adapter) -> None:
    """Add a correction to a layer of one of the types in ADAPTED.

    A of a linear layer is drawn uniformly within ±1/√in, and B is zero. For an
    embedding A is zero and B standard normal, as in the library PEFT.

    Args:
        layer: The layer, whose class changes.
        name: The layer's name, for error messages.
        adapter: The section ``[adapter]``.

    Raises:
        UserError: The rank is larger than the layer.
    """
    weight: Any = layer.weight
    of_linear = isinstance(layer, nn.Linear)
    outputs, inputs = weight.shape if of_linear else weight.shape[::-1]
    rank = adapter.rank
    if rank > max(inputs, outputs):
        raise UserError(
            f"adapter.rank = {rank}: the layer '{name}' has {inputs} inputs and {outputs} "
            f"outputs; at most {max(inputs, outputs)}"
        )
    down, up = weight.new_zeros(rank, inputs), weight.new_zeros(outputs, rank)
    if of_linear:
        bound = 1 / math.sqrt(inputs)
        nn.init.uniform_(down, -bound, bound)
    else:
        nn.init.normal_(up)
    layer.A = Parameter(down)
    layer.B = Parameter(up)
    if of_linear and adapter.dropout:
        layer.dropout = nn.Dropout(adapter.dropout)
    divisor = rank if adapter.scale == "alpha/r" else math.sqrt(rank)
    factor: Any = adapter.alpha / divisor
    layer.factor = factor
    layer.__class__ = ADAPTED[type(layer)]


def find_layers(module: nn.Module) -> dict[str, LowRank]:
    """Return the adapted layers of a model by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, LowRank)
    }


@torch.no_grad()
def merge(module: nn.Module) -> nn.Module:
    """Add the corrections to the weights, restore torch's own layer classes, and return
    the module.

    Tied weights become separate if only one of the layers has a correction.
    """
    for layer in find_layers(module).values():
        # A new parameter, because a layer without the correction may share the weight.
        corrected = layer.weight + layer.compute_correction()
        layer.weight = Parameter(corrected, requires_grad=layer.weight.requires_grad)
        del layer.A, layer.B, layer.factor
        if hasattr(layer, "dropout"):
            del layer.dropout
        whole: nn.Module = layer
        whole.__class__ = nn.Linear if isinstance(layer, nn.Linear) else nn.Embedding
    return module
