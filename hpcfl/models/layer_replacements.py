"""Replacements for layers of torch that cannot run for many clients in one call.

``replace_layers`` also replaces layers of torch in a user's module. A layer remains the
same object, with its parameters, names and hooks, because a module may refer to its
layers from anywhere. Only its class changes, to a subclass of torch's class. torch's
parametrizations change classes in the same way.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# File of this folder with the replacement, by the name of torch's layer and of the
# replacement.
FILES = {
    "Dropout": "random",
    "Dropout1d": "random",
    "Dropout2d": "random",
    "Dropout3d": "random",
    "AlphaDropout": "random",
    "FeatureAlphaDropout": "random",
    "MultiheadAttention": "attention",
    "TransformerEncoderLayer": "attention",
    "TransformerEncoder": "attention",
    "LSTM": "recurrent",
    "GRU": "recurrent",
    "Embedding": "layer_replacements",
    "GELU": "attention",
}
CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
IN_BATCH_OF_CLIENTS = ContextVar("in_batch_of_clients", default=False)


class Embedding(nn.Embedding):
    """torch's embedding, with the padding's gradient removed by a mask.

    Under vmap torch removes it only for the first client.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_idx is None or self.max_norm is not None or self.sparse:
            return super().forward(input)
        weight = self.weight
        # The mask is applied to the smaller of the table and the result.
        masks_table = len(weight) < input.numel()
        if masks_table:
            rows = torch.arange(len(weight), device=weight.device)
            weight = _stop_gradient(weight, rows == self.padding_idx)
        vectors = functional.embedding(
            input, weight, scale_grad_by_freq=self.scale_grad_by_freq
        )
        if masks_table:
            return vectors
        return _stop_gradient(vectors, input == self.padding_idx)


def _stop_gradient(vectors: Tensor, is_padding: Tensor) -> Tensor:
    """Return ``vectors`` [..., width], without gradient at padding."""
    return torch.where(is_padding[..., None], vectors.detach(), vectors)


def replace_layers(module: nn.Module) -> nn.Module:
    """Replace layers that cannot run side by side, and return the module."""
    for layer in module.modules():
        name = type(layer).__name__
        # Subclasses are not replaced, because they may compute something else.
        if name in FILES and type(layer) is getattr(nn, name):
            file = importlib.import_module(f"hpcfl.models.{FILES[name]}")
            layer.__class__ = getattr(file, name)
    return module


def restore_layers(module: nn.Module) -> nn.Module:
    """Restore torch's own layers, and return the module."""
    for layer in module.modules():
        kind: Any = type(layer)
        if kind.__module__.startswith("hpcfl.models.") and kind.__name__ in FILES:
            layer.__class__ = getattr(nn, kind.__name__)
    return module


def has_recurrent_layers(module: nn.Module) -> bool:
    """Return whether a model has recurrent layers."""
    return any(isinstance(part, nn.LSTM | nn.GRU) for part in module.modules())


def has_convolutions(module: nn.Module) -> bool:
    """Return whether a model has convolutions."""
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())


def is_fast_channels_last(module: nn.Module) -> bool:
    """Return whether a CPU computes a model on images with the channels last.

    oneDNN's AVX2 gradient of a strided 1 x 1 convolution with three or four input
    channels wrote past the end of its memory if channels were last (torch 2.13, AMD
    EPYC); with eight it did not. Models with fewer than eight keep channels first.
    """
    for part in module.modules():
        if not isinstance(part, nn.Conv2d) or part.in_channels >= 8:
            continue
        if part.kernel_size == (1, 1) and part.stride != (1, 1):
            return False
    return has_convolutions(module)


@contextmanager
def batching_clients() -> Iterator[None]:
    """Run many clients in one call within a block.

    In the block a user's ``scaled_dot_product_attention`` uses matrix products. Some of
    its other backends process the clients in a loop.
    """
    with sdpa_kernel(SDPBackend.MATH):
        token = IN_BATCH_OF_CLIENTS.set(True)
        try:
            yield
        finally:
            IN_BATCH_OF_CLIENTS.reset(token)
