"""A small convolutional network with batch norm."""

from torch import nn


def small(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 6 * 6, classes),
    )
