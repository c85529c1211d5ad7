"""BloodMNIST (Yang et al., MedMNIST, 2023): 11,959 + 3,421 images 3×28×28 of blood
cells, 8 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("bloodmnist")
