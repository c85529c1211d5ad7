"""The four-layer CNN of McMahan et al. (2017), as FedALA and cwFedAvg use it."""

from hpcfl.models._convolutional import TwoConvolutions


class CNN(TwoConvolutions):
    """32 and 64 channels, a layer of 512: 582,026 parameters for MNIST, 878,538 for CIFAR-10."""

    channels = 32, 64
    widths = (512,)


plugin = CNN
