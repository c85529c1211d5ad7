"""Models in mixed precision (``runtime.precision = "bf16"``, adapters.md §5) by torch's
autocast.

Mixed precision applies to the forward pass, the features and the head of a model. Their
outputs are float32, so losses, scores and methods compute with float32 features and
logits.

A module's class changes to a class with a mixin, because torch's hooks cannot put a
context around a forward pass, and a wrapper would change the names of all parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcfl.models.layer_replacements import CONVOLUTIONS

# Layers that read their weights in products or look-ups, so that the weights may be
# bfloat16. A norm has float32 inputs and needs float32 parameters.
STORED = (
    nn.Linear,
    *CONVOLUTIONS,
    nn.Embedding,
    nn.MultiheadAttention,
)


class Mixed(nn.Module):
    """Mixin for the class of a module in mixed precision."""

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        with _autocast(arguments, keywords):
            return _float32(super().forward(*arguments, **keywords))


class MixedWithFeatures(Mixed):
    """Mixin for a module in mixed precision with a method ``features``."""

    def features(self, *arguments: Any, **keywords: Any) -> Any:
        plain: Any = super()
        with _autocast(arguments, keywords):
            return _float32(plain.features(*arguments, **keywords))


def _autocast(arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.autocast:
    """Return mixed precision on the device of the model's inputs."""
    given = [*arguments, *keywords.values()]
    device = next(value.device for value in given if isinstance(value, Tensor))
    # The cache would reuse the bfloat16 copy of a weight for other lanes and modes.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def _float32(output: Any) -> Any:
    if isinstance(output, Tensor) and output.dtype == torch.bfloat16:
        return output.float()
    return output


def mix(module: nn.Module) -> nn.Module:
    """Switch a module to mixed precision and return it."""
    for name in ("features", "head"):
        part = getattr(module, name, None)
        if isinstance(part, nn.Module):
            _join(part, Mixed)
    has_features = hasattr(type(module), "features")
    _join(module, MixedWithFeatures if has_features else Mixed)
    return module


def _join(module: nn.Module, kind: type[Mixed]) -> None:
    plain = type(module)
    module.__class__ = type(plain.__name__, (kind, plain), {})


def stored(module: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a module's frozen values as they are stored: weights in bfloat16.

    Biases, norms and values of other layers, such as positions, keep their type,
    because they need little memory.
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
    """Switch a module back to float32 and its own classes, and return it."""
    for part in module.modules():
        if isinstance(part, Mixed):
            part.__class__ = type(part).__bases__[1]
            for parameter in part.parameters():
                if parameter.dtype == torch.bfloat16:
                    parameter.data = parameter.data.float()
    return module
