"""The four-layer CNN of McMahan et al. (2017), as FedALA and cwFedAvg use it."""

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

from hpcfl.errors import UserError

_KERNEL = 5
_SMALLEST = 16  # a side of 16 leaves one position after two times (convolution, pooling)


class CNN(nn.Module):
    """Two 5×5 convolutions (32, 64) with pooling, a layer of 512, the output layer.

    582,026 parameters for MNIST, 878,538 for CIFAR-10. Raises UserError for samples that are not images or too small.
    """

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < _SMALLEST:
            raise UserError(f"model.name = 'cnn' needs images [channels, height, width] of at least {_SMALLEST}×"
                            f"{_SMALLEST}; a sample here has the shape {'×'.join(map(str, shape))}; 'mlp' takes any")
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, _KERNEL)
        self.conv2 = nn.Conv2d(32, 64, _KERNEL)
        self.fc = nn.Linear(64 * _side(_side(height)) * _side(_side(width)), 512)
        self.head = nn.Linear(512, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The head's input, float32 [batch, 512], for images [batch, channels, height, width]."""
        # Pooling before the ReLU: the maximum commutes with it bit for bit, and the ReLU sees a quarter of the values.
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2))
        return relu(self.fc(x.flatten(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, classes]."""
        return self.head(self.features(x))


def _side(side: int) -> int:
    """The side of an image after one convolution and one pooling."""
    return (side - _KERNEL + 1) // 2


plugin = CNN
