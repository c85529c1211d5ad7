"""Base class of the papers' small image models: two convolutions with pooling, then
linear layers.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import max_pool2d, pad, relu

from hpcfl.errors import UserError
from hpcfl.models import Classifier

KERNEL = 5
# The smallest side of an image: two convolutions, each with pooling, reduce 16 pixels
# to a single position.
SMALLEST = 16


class TwoConvolutions(Classifier):
    """Two stages of 5×5 convolution, ReLU and 2×2 pooling, then linear layers with ReLU
    and the output layer.

    A subclass is one paper's model. Parameters have torch's default initialisation.

    Attributes:
        channels: The channels of the two convolutions.
        widths: The widths of the linear layers.
        head_bias: Whether the output layer has a bias.
        side: The number of pixels to which shorter sides of an image are padded with
            zeros on both ends; 0 for no padding.

    Raises:
        UserError: The samples are not images, or are too small.
    """

    channels: ClassVar[tuple[int, int]]
    widths: ClassVar[Sequence[int]]
    head_bias: ClassVar[bool] = True
    side: ClassVar[int] = 0

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or max(min(shape[1:]), self.side) < SMALLEST:
            raise UserError(
                f"model.name = '{type(self).__name__.lower()}' needs images [channels, height, "
                f"width] of at least {SMALLEST}×{SMALLEST}; a sample here has the shape "
                f"{'×'.join(map(str, shape))}; 'mlp' takes any"
            )
        height = max(shape[1], self.side)
        width = max(shape[2], self.side)
        # torch's ``pad`` takes the last dimension first.
        self._padding = [
            *_split_padding(width - shape[2]),
            *_split_padding(height - shape[1]),
        ]
        self.conv1 = nn.Conv2d(shape[0], self.channels[0], KERNEL)
        self.conv2 = nn.Conv2d(*self.channels, KERNEL)
        positions = _count_remaining(height) * _count_remaining(width)
        self._linear = [f"fc{position}" for position in range(1, len(self.widths) + 1)]
        inputs = self.channels[1] * positions
        for name, outputs in zip(self._linear, self.widths, strict=True):
            self.add_module(name, nn.Linear(inputs, outputs))
            inputs = outputs
        self.head = nn.Linear(self.widths[-1], classes, bias=self.head_bias)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input, float32 [batch, last width], for images [batch,
        channels, height, width].
        """
        if any(self._padding):
            x = pad(x, self._padding)
        # Pooling before the ReLU gives the same bits and leaves a quarter of the
        # values.
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2)).flatten(1)
        for name in self._linear:
            x = relu(self.get_submodule(name)(x))
        return x


def _split_padding(missing: int) -> tuple[int, int]:
    """Return the padding before and after a side with this many ``missing`` pixels."""
    return missing // 2, missing - missing // 2


def _count_remaining(side: int) -> int:
    """Return the size of a side after convolution and pooling, both twice."""
    for _ in range(2):
        side = (side - KERNEL + 1) // 2
    return side
