"""OCTMNIST (Yang et al., MedMNIST, 2023): 97,477 + 1,000 images 1×28×28 of retinas by
optical coherence tomography, 4 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("octmnist")
