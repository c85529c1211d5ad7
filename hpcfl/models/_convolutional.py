"""What the small image models of the papers have in common: two 5×5 convolutions with pooling, linear
layers, a head."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import max_pool2d, pad, relu

from hpcfl.errors import UserError

KERNEL = 5
SMALLEST = 16  # a side of 16 leaves one position after two times (convolution, pooling)


class TwoConvolutions(nn.Module):
    """Two times (5×5 convolution, ReLU, 2×2 pooling), linear layers with ReLU, the output layer;
    default initialisation.

    A subclass is one paper's model. ``side``: images of smaller sides are zero-padded evenly to it; 0 takes
    them as they are. Raises UserError for samples that are not images or too small.
    """

    channels: ClassVar[tuple[int, int]]
    widths: ClassVar[Sequence[int]]
    head_bias: ClassVar[bool] = True
    side: ClassVar[int] = 0

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or max(min(shape[1:]), self.side) < SMALLEST:
            raise UserError(f"model.name = '{type(self).__name__.lower()}' needs images [channels, height, "
                            f"width] of at least {SMALLEST}×{SMALLEST}; a sample here has the shape "
                            f"{'×'.join(map(str, shape))}; 'mlp' takes any")
        sides = [max(side, self.side) for side in shape[1:]]
        self._padding = [*_around(sides[1] - shape[2]), *_around(sides[0] - shape[1])]
        self.conv1 = nn.Conv2d(shape[0], self.channels[0], KERNEL)
        self.conv2 = nn.Conv2d(*self.channels, KERNEL)
        width = self.channels[1] * _left(sides[0]) * _left(sides[1])
        self._linear = [f"fc{position}" for position in range(1, len(self.widths) + 1)]
        for name, inputs, outputs in zip(self._linear, [width, *self.widths], self.widths, strict=False):
            self.add_module(name, nn.Linear(inputs, outputs))
        self.head = nn.Linear(self.widths[-1], classes, bias=self.head_bias)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The head's input, float32 [batch, last width], for images [batch, channels, height, width]."""
        if any(self._padding):
            x = pad(x, self._padding)
        # Pooling before the ReLU: the maximum commutes with it bit for bit, and the ReLU sees a quarter
        # of the values.
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2)).flatten(1)
        for name in self._linear:
            x = relu(self.get_submodule(name)(x))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, classes]."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits


def _around(missing: int) -> tuple[int, int]:
    """Padding before and after."""
    return missing // 2, missing - missing // 2


def _left(side: int) -> int:
    """What two times (convolution, pooling) leave of a side."""
    for _ in range(2):
        side = (side - KERNEL + 1) // 2
    return side
