"""Bottlenecks: narrow layers that are trained behind the blocks of a frozen model
(adapters.md §3).

Houlsby et al., "Parameter-efficient transfer learning for NLP", ICML 2019, section 2.1:
what a layer gives, y [d], becomes y + W_up·f(W_down·y) with W_down [m, d] and W_up
[d, m]. It is the identity at the start, there nearly.

There a block has two of them, behind attention and behind the second linear layer, before
what comes in is added. Here it has one, of what the whole block gives; ``adapter.targets
= ["*.attention.out", "*.linear2"]`` are theirs in the built-in transformers. f, of which
the paper says that it is not linear and their code that it is GELU, is ReLU; their biases
are left out; their layer norms, trained as well, are for ``adapter.train``.
"""

import math
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.errors import UserError
from hpcfl.experiment.plugins import suggest_from_many
from hpcfl.experiment.sections import Adapter
from hpcfl.models._transformer import Block
from hpcfl.rows import patterns
from hpcfl.rows.layout import of_parameters

TORCHS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # nobody calls them


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Let bottlenecks follow the targets; the names of what is trained of them.

    W_down is drawn uniformly within ±1/√d, and W_up is zero.

    Raises:
        UserError: there is no target, or one cannot be followed.
    """
    trained = set[str]()
    for name in _targets(module, adapter):
        layer = module.get_submodule(name)
        width = _width(layer, name)
        bound = 1 / math.sqrt(width)
        down = nn.init.uniform_(torch.empty(adapter.width, width), -bound, bound)
        layer.W_down = Parameter(down)
        layer.W_up = Parameter(torch.zeros(width, adapter.width))
        layer.register_forward_hook(_follow)
        trained |= {f"{name}.W_down", f"{name}.W_up"}
    return trained


def _follow(layer: Any, given: Any, output: Tensor) -> Tensor:
    """What a layer gives, behind its bottleneck."""
    narrow = functional.linear(output, layer.W_down).relu()
    return output + functional.linear(narrow, layer.W_up)


def _targets(module: nn.Module, adapter: Adapter) -> list[str]:
    """The names of the layers that bottlenecks follow; of layers inside each other the
    outermost. Raises UserError where there is none.
    """
    head = of_parameters(module).head_name
    possible = dict[str, nn.Module]()
    for name, layer in module.named_modules():
        around = module.get_submodule(name.rpartition(".")[0])
        # In evaluation mode torch's blocks read the weights of their layers.
        unasked = isinstance(around, TORCHS) or isinstance(layer, CONTAINERS)
        if name.split(".")[0] not in ("", head) and not unasked:
            possible[name] = layer
    if adapter.targets:
        found = patterns.matching(adapter.targets, possible, "adapter.targets")
        return [name for name in found if not _inside(name, found)]
    blocks = [
        name for name, layer in possible.items() if isinstance(layer, (Block, *TORCHS))
    ]
    if not blocks:
        raise UserError(
            "adapter.targets: the model has no blocks of a transformer that hpcfl knows; "
            f"name the layers that bottlenecks follow{suggest_from_many('', possible)}"
        )
    return blocks


def _inside(name: str, layers: list[str]) -> bool:
    """Whether a name is of something within one of the layers."""
    return any(name.startswith(f"{layer}.") for layer in layers)


def _width(layer: nn.Module, name: str) -> int:
    """How many numbers the layer with this name gives for a token. Raises UserError
    where it does not say so.
    """
    width: Any = getattr(layer, "width", None)  # of our blocks, and of a user's
    if isinstance(layer, TORCHS):
        width = layer.norm1.normalized_shape[-1]
    elif type(layer) is nn.LayerNorm:
        width = layer.normalized_shape[-1]
    elif type(layer) is nn.Linear:
        width = layer.out_features
    if not isinstance(width, int):
        raise UserError(
            f"adapter.targets: '{name}', of {type(layer).__name__}, does not say how many "
            "numbers it gives for a token; let it have this as its attribute width, or "
            "name a linear layer or layer norm"
        )
    return width
