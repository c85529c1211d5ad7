"""BreastMNIST (Yang et al., MedMNIST, 2023): 546 + 156 images 1×28×28 of breasts by
ultrasound, 2 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("breastmnist")
