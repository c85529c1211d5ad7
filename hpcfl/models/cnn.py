"""The four-layer CNN of McMahan et al. (2017), as FedALA and cwFedAvg use it."""

from hpcfl.models.convolutional import TwoConvolutions


class CNN(TwoConvolutions):
    """Convolutions of 32 and 64 channels and a layer of 512.

    It has 582,026 parameters for MNIST and 878,538 for CIFAR-10.
    """

    channels = 32, 64
    widths = (512,)


plugin = CNN
