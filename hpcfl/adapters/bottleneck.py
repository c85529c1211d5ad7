"""Bottlenecks: narrow trained layers after the blocks of a frozen model (adapters.md
§3).

Houlsby et al., "Parameter-efficient transfer learning for NLP", ICML 2019, section 2.1:
a layer's output y [d] becomes y + W_up·f(W_down·y) with W_down [m, d] and W_up [d, m].
The bottleneck is the identity at the start; the paper's is nearly so.

The paper has two bottlenecks per block, after attention and after the second linear
layer, before the residual is added. Here a block has one, after its output.
``adapter.targets = ["*.attention.out", "*.linear2"]`` selects the paper's positions in
the built-in transformers. The paper only says that f is nonlinear, and its code uses
GELU; here f is ReLU. The paper's biases are left out. ``adapter.train`` can add the
layer norms, which the paper trains as well.
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
from hpcfl.models.transformer import Block
from hpcfl.rows import layout

TORCHS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def insert(module: nn.Module, adapter: Adapter) -> set[str]:
    """Insert a bottleneck after each target and return the names of the trained
    parameters.

    W_down is drawn uniformly within ±1/√d, and W_up is zero.

    Raises:
        UserError: There is no target, or the width of a target is unknown.
    """
    trained = set[str]()
    for name in _find_targets(module, adapter):
        layer = module.get_submodule(name)
        width = _find_width(layer, name)
        bound = 1 / math.sqrt(width)
        down = nn.init.uniform_(torch.empty(adapter.width, width), -bound, bound)
        layer.W_down = Parameter(down)
        layer.W_up = Parameter(torch.zeros(width, adapter.width))
        layer.register_forward_hook(_follow)
        trained |= {f"{name}.W_down", f"{name}.W_up"}
    return trained


def _follow(layer: Any, given: Any, output: Tensor) -> Tensor:
    """Apply the bottleneck to the output of its layer."""
    narrow = functional.linear(output, layer.W_down).relu()
    return output + functional.linear(narrow, layer.W_up)


def _find_targets(module: nn.Module, adapter: Adapter) -> list[str]:
    """Return the names of the layers that a bottleneck follows; of nested layers only
    the outermost.

    Raises UserError if there are none.
    """
    possible = find_called_layers(module)
    if adapter.targets:
        found = layout.match_names(adapter.targets, possible, "adapter.targets")
        inside = tuple(f"{name}." for name in found)
        return [name for name in found if not name.startswith(inside)]
    blocks = [
        name for name, layer in possible.items() if isinstance(layer, (Block, *TORCHS))
    ]
    if not blocks:
        raise UserError(
            "adapter.targets: the model has no transformer blocks of a known type; "
            f"name the layers that bottlenecks follow{suggest('', possible)}"
        )
    return blocks


def _find_width(layer: nn.Module, name: str) -> int:
    """Return the number of outputs of a layer per token.

    Raises UserError for a layer without a known width.
    """
    # Built-in blocks have this attribute, and users' layers may have it.
    width: Any = getattr(layer, "width", None)
    if isinstance(layer, TORCHS):
        width = layer.norm1.normalized_shape[-1]
    elif type(layer) is nn.LayerNorm:
        width = layer.normalized_shape[-1]
    elif type(layer) is nn.Linear:
        width = layer.out_features
    if not isinstance(width, int):
        raise UserError(
            f"adapter.targets: the output width of '{name}' ({type(layer).__name__}) is "
            "unknown; set it as the attribute width of the layer, or name a linear layer or "
            "layer norm"
        )
    return width
