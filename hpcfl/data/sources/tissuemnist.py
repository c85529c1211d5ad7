"""TissueMNIST (Yang et al., MedMNIST, 2023): 165,466 + 47,280 images 1×28×28 of kidney
cells, 8 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("tissuemnist")
