"""Conv2Cifar, FedNH's model for CIFAR-10 and CIFAR-100 (protocols.md B6)."""

from hpcfl.models.convolutional import TwoConvolutions


class Conv2Cifar(TwoConvolutions):
    """Two convolutions of 64 channels, layers of 384 and 192, and a head without bias.

    It has 797,952 parameters for CIFAR-10 and 815,232 for CIFAR-100.
    """

    channels = 64, 64
    widths = (384, 192)
    head_bias = False


plugin = Conv2Cifar
