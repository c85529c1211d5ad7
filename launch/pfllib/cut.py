"""Copy the first samples of each client from a folder that PFLlib generated.

python launch/pfllib/cut.py PFLLIB/dataset/MNIST PFLLIB/dataset/MNISTsmall
"""

import json
import sys
from pathlib import Path

import numpy as np

from hpcfl.data.sources import pfllib

SIZES = {"train": 63, "test": 50}  # maximum number of samples per client and part


def cut(source: Path, target: Path) -> None:
    """Write a folder with the first samples of each client.

    Args:
        source: Folder that PFLlib generated.
        target: New folder in the same format.
    """
    dataset = pfllib.plugin.read("pfllib", source)
    assert dataset.owners is not None
    x, y, owner = dataset.x.numpy(), dataset.y.numpy(), dataset.owners.numbers
    training = np.arange(len(y)) < len(y) - dataset.official_test
    config = json.loads((source / pfllib.CONFIG).read_text(encoding="utf-8"))
    totals = []
    for client in range(config["num_clients"]):
        labels = []
        for part, size in SIZES.items():
            in_part = training == (part == "train")
            kept = np.flatnonzero(in_part & (owner == client))[:size]
            labels.append(y[kept])
            samples = np.array({"x": x[kept], "y": y[kept]}, dtype=object)
            folder = target / part
            folder.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(folder / f"{client}.npz", data=samples)
        classes, counts = np.unique(np.concatenate(labels), return_counts=True)
        totals.append(np.stack([classes, counts], axis=1).tolist())
    config[pfllib.SIZES] = totals
    text = json.dumps(config)
    (target / pfllib.CONFIG).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]))
