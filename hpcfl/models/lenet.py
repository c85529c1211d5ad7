"""LeNet-5 as DiversiFed uses it for CIFAR-10 and PathMNIST (protocols.md B5)."""

from hpcfl.models.convolutional import TwoConvolutions


class LeNet(TwoConvolutions):
    """Convolutions of 6 and 16 channels and layers of 120 and 84.

    For images of 3×32×32 it has 62,006 parameters with ten classes and 61,921 with
    nine. Its 400 flattened inputs require 32×32. The paper does not describe its
    treatment of PathMNIST's 28×28. Here smaller images are padded with zeros, the mean
    grey, to 32×32.
    """

    channels = 6, 16
    widths = (120, 84)
    side = 32


plugin = LeNet
