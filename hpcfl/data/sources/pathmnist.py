"""PathMNIST (Yang et al., MedMNIST, 2023): 89,996 + 7,180 images 3×28×28 of tissue, 9
classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("pathmnist")
