"""Models in mixed precision (``runtime.precision = "bf16"``, adapters.md §5): torch's
autocast says what is computed in bfloat16.

It is the model that is mixed and not the step: its forward pass, its features and its
head, which give float32. So losses, scores and what a method makes of features are
computed in float32, whoever calls the model.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# Layers of which products or look-ups read the weights, so that these may be bfloat16.
# A norm, which gets float32, could not read others than float32.
STORED = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.MultiheadAttention)


class Mixed(nn.Module):
    """Joins the class of a module that is computed in mixed precision."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        with _autocast(arguments, keywords):
            return _float32(super().forward(*arguments, **keywords))


class MixedWithFeatures(Mixed):
    """And of one that has a method ``features``."""

    def features(self, *arguments: Any, **keywords: Any) -> Any:
        plain: Any = super()
        with _autocast(arguments, keywords):
            return _float32(plain.features(*arguments, **keywords))


def _autocast(*given: Any) -> torch.autocast:
    """Mixed precision where the tensors are that a model is given."""
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    # Its cache would keep the bfloat16 form of a weight for other lanes and other modes.
    return torch.autocast(tensors[0].device.type, torch.bfloat16, cache_enabled=False)


def _float32(output: Any) -> Any:
    if isinstance(output, Tensor) and output.dtype == torch.bfloat16:
        return output.float()
    return output


def mix(module: nn.Module) -> nn.Module:
    """The same module, computed in mixed precision from now on."""
    for name in ("features", "head"):
        part = module._modules.get(name)
        if part is not None:
            _join(part, Mixed)
    has_features = hasattr(type(module), "features")
    _join(module, MixedWithFeatures if has_features else Mixed)
    return module


def _join(module: nn.Module, kind: type[Mixed]) -> None:
    plain = type(module)
    module.__class__ = type(plain.__name__, (kind, plain), {})


def stored(module: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a module freezes, as it is stored: weights in bfloat16.

    Biases, norms and what layers of other kinds have, such as positions, stay as they
    are: they are few.
    """
    weights = set[str]()
    for path, layer in module.named_modules():
        if isinstance(layer, STORED):
            for name, parameter in layer.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    weights.add(f"{path}.{name}")
    return {
        name: value.bfloat16() if name in weights else value
        for name, value in values.items()
    }


def restore(module: nn.Module) -> nn.Module:
    """The same module in float32 alone, with its own classes again."""
    for part in module.modules():
        if isinstance(part, Mixed):
            part.__class__ = type(part).__bases__[1]
            for parameter in part.parameters():
                if parameter.dtype == torch.bfloat16:
                    parameter.data = parameter.data.float()
    return module
