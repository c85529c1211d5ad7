"""OrganAMNIST (Yang et al., MedMNIST, 2023): 34,561 + 17,778 images 1×28×28 of organs
in axial slices, 11 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("organamnist")
