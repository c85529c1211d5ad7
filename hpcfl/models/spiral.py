"""The network of FedNH's spiral experiment (protocols.md B7): 230 parameters and a head
of 12.
"""

import math

import torch
from torch import nn
from torch.nn.functional import relu

from hpcfl.models import Classifier


class SpiralNetwork(Classifier):
    """Linear layers to 16, 8 and 4 features, with ReLU after each, then to 2, and a
    head without bias.

    A figure can show the classes in the plane of the two features.
    """

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.fc1 = nn.Linear(math.prod(shape), 16)
        self.fc2 = nn.Linear(16, 8)
        self.fc3 = nn.Linear(8, 4)
        self.fc4 = nn.Linear(4, 2)
        self.head = nn.Linear(2, classes, bias=False)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input [batch, 2]."""
        x = relu(self.fc1(x.flatten(1)))
        x = self.fc4(relu(self.fc3(relu(self.fc2(x)))))
        return x


plugin = SpiralNetwork
