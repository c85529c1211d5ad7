"""CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images 3×32×32, 100 fine classes, in
pickled batches.
"""

from hpcfl.data.sources.cifar_10 import PickledBatches

plugin = PickledBatches(
    "CIFAR100",
    "cifar-100-python",
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
    labels="fine_labels",
    classes=100,
    statistics=((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    licence="none stated",
)
