"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images 1×28×28, 10 classes, in IDX
files.
"""

from hpcfl.data.sources.mnist import IdxFiles

plugin = IdxFiles(
    "FashionMNIST",
    "FashionMNIST/raw",
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    licence="MIT",
)
