"""Model of pfl-research's benchmark on CIFAR-10: two convolutions, two dropouts."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A model of 1,626,442 parameters for samples of 3×32×32 and ten classes."""

    def __init__(self, shape: torch.Size, classes: int):
        super().__init__()
        channels, height, width = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear((height - 4) // 2 * ((width - 4) // 2) * 64, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.head = nn.Linear(128, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits
