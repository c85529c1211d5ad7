"""OrganSMNIST (Yang et al., MedMNIST, 2023): 13,932 + 8,827 images 1×28×28 of organs in
sagittal slices, 11 classes, in an npz file.

Its validation part is left out; with ``size = 64`` images have 64×64 pixels.
"""

from hpcfl.data.sources import _medmnist

plugin = _medmnist.make_source("organsmnist")
