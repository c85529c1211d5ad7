"""CIFAR-10 and CIFAR-100 in pickled batches."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources import pickled
from hpcfl.data.sources.base import CheckedFiles
from hpcfl.files import untrusted_files

IMAGES = 60_000  # total over all batches


@dataclass(frozen=True)
class PickledBatches(CheckedFiles):
    """CIFAR's Python version: training batches, then the test batch.

    Attributes:
        labels: key of the labels in a batch.
        classes: number of classes.
        statistics: mean and standard deviation of each channel, as in ``Dataset``.
    """

    labels: str
    classes: int
    statistics: tuple[tuple[float, ...], tuple[float, ...]]

    def read(self, name: str, root: Path) -> Dataset:
        # one array filled batch by batch, so that the images are in memory once
        images = np.empty((IMAGES, 3, 32, 32), np.uint8)
        count, labels = 0, []
        for file in self.checksums:
            content = self.read_verified(name, root, file)
            path = root / self.folder / file
            with untrusted_files.refuse_unreadable(path, f"a batch of {name}"):
                batch = pickled.unpickle(content, encoding="latin1")
                part = batch["data"].reshape(-1, 3, 32, 32)
                images[count : count + len(part)] = part
                count += len(part)
                labels.append(np.array(batch[self.labels], dtype=np.int64))
        read = [images[:count]]
        return self.join(name, read, labels, self.classes, statistics=self.statistics)


plugins = {
    "cifar-10": PickledBatches(
        "CIFAR10",
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        labels="labels",
        classes=10,
        statistics=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        licence="none stated",
        about="CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images 3×32×32, 10 "
        "classes, in pickled batches.",
    ),
    "cifar-100": PickledBatches(
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
        about="CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images 3×32×32, 100 fine "
        "classes, in pickled batches.",
    ),
}
