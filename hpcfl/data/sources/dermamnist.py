"""DermaMNIST (Yang et al., MedMNIST, 2023): 7,007 + 2,005 images 3×28×28 of moles and
other marks of the skin, 7 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("dermamnist")
