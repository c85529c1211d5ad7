"""Workloads of the benchmarks: experiments as ``hpcfl`` reads them, and the same data,
partition and model for the two references.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from hpcfl.data import datasets, partition
from hpcfl.data.partition import Split
from hpcfl.experiment import config, plugins

ROOT_OPTIONS = argparse.ArgumentParser(add_help=False)
ROOT_OPTIONS.add_argument(
    "folder", type=Path, help="holds experiment.toml and partition.h5"
)
ROOT_OPTIONS.add_argument(
    "--rounds", type=int, default=1, help="timed rounds, after one to warm up"
)
ROOT_OPTIONS.add_argument("--score", action="store_true")

NEVER = 1_000_000  # evaluation.every of a workload without scoring

W1 = """
[data]
dataset = "mnist"
[partition]
scheme = "dirichlet"
clients = 20
beta = 0.1
[model]
name = "cnn"
[training]
batch_size = 10
lr = 0.005
"""

W2 = """
[data]
dataset = "fashion-mnist"
[partition]
scheme = "iid"
clients = 40
[model]
name = "mlp"
hidden = [64]
[training]
batch_size = 100
epochs = 10
lr = 0.005
"""

W3 = """
[data]
dataset = "digits"
[partition]
scheme = "dirichlet"
clients = 100
beta = 1.0
[model]
name = "mlp"
hidden = [32]
[training]
batch_size = 10
lr = 0.005
"""

SCALING = """
[data]
dataset = "fashion-mnist"
[partition]
scheme = "iid"
clients = {}
[model]
name = "mlp"
hidden = [64]
[training]
batch_size = 5
lr = 0.005
"""
# Small dense models with rounds of milliseconds: 60 samples of 784 features per client,
# or 6 of 64.
DENSE = """
[data]
dataset = "mnist"
[partition]
scheme = "iid"
clients = 100
[model]
name = "mlp"
hidden = [64]
[training]
batch_size = 10
lr = 0.005
"""

TINY = """
[data]
dataset = "digits"
[partition]
scheme = "iid"
clients = 100
[model]
name = "mlp"
hidden = [32]
[training]
batch_size = 2
lr = 0.005
"""
# 20 clients of 260 samples, 26 steps per client
DENSE_FEW = DENSE.replace("clients = 100", "clients = 20")

# pfl-research's: benchmarks/image_classification/configs/baseline.yaml
DROPOUT = """
[data]
dataset = "cifar-10"
[partition]
scheme = "iid"
clients = 1000
train = 0.8334
[model]
name = "two_dropouts:Net"
[training]
batch_size = 10
lr = 0.1
"""
STEPS_OF_A_CLIENT = 11  # of 52 training samples

CIFAR = W1.replace("mnist", "cifar-10").replace("clients = 20", "clients = 100")
# one step per client, so that messages and the server take most of a round
RESNET_SMALL = """
[data]
dataset = "cifar-10"
[partition]
scheme = "iid"
clients = 20
[model]
name = "resnet18"
[training]
batch_size = 10
lr = 0.005
"""
EXPERIMENTS = {
    "W1": W1,
    "W1-tenth": W1,
    "W2": W2,
    "W3": W3,
    "dense": DENSE,
    "dense-few": DENSE_FEW,
    "tiny": TINY,
    "dropout": DROPOUT,
    "CIFAR-100": CIFAR,
    "ResNet-small": RESNET_SMALL,
    **{f"scaling-{clients}": SCALING.format(clients) for clients in (20, 100, 1000)},
    **{f"few-{clients}": SCALING.format(clients) for clients in (100, 10_000)},
}
# 10,000 clients can have at most seven of 70,000 samples each: five for training, two
# for testing.
SAMPLES_OF_A_CLIENT = {
    "W2": 300,
    "dense": 80,
    "dense-few": 347,
    "tiny": 8,
    "ResNet-small": 13,
    **{f"scaling-{clients}": 70 for clients in (20, 100, 1000)},
    "few-100": 7,
    "few-10000": 7,
}


@dataclass(frozen=True)
class Workload:
    """Normalised samples ``x``, ``y``; indices of each client; ``model()`` draws one."""

    x: torch.Tensor
    y: torch.Tensor
    train: list[torch.Tensor]
    test: list[torch.Tensor]
    model: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    lr: float
    convolves: bool


def write(name: str, folder: Path):
    """Write the experiment file and the partition of a workload in a new folder."""
    split, share = write_text(
        f'name = "{name}"\nrounds = {NEVER - 1}\n{EXPERIMENTS[name]}'
        '[method]\nname = "fedavg"\n',
        folder,
    )
    if name in SAMPLES_OF_A_CLIENT:
        _cut(split, share, SAMPLES_OF_A_CLIENT[name])
        split.save(folder / "partition.h5")
    if name == "W1-tenth":
        _thin(split, 10)
        split.save(folder / "partition.h5")


def write_text(text: str, folder: Path) -> tuple[Split, float]:
    """Write the experiment file ``text`` and its partition in a new folder; return the
    partition and its share of training samples.
    """
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(text)
    experiment = config.load(folder / "experiment.toml")
    dataset = datasets.load(experiment.data)
    split = partition.make(experiment.partition, dataset)
    split.save(folder / "partition.h5")
    return split, experiment.partition.train


def _cut(split: Split, share: float, each: int):
    """Reduce each client to at most the given number of samples."""
    train = round(share * each)
    split.train[:] = [part[:train] for part in split.train]
    split.test[:] = [part[: each - train] for part in split.test]


def _thin(split: Split, share: int):
    """Reduce each client to about one sample in ``share``, with multiples of a hundred
    for training.

    So mini-batches of ten are complete, and so are pairs of them and those of 80 % of
    the samples, which some methods train on. PFLlib leaves out incomplete ones.
    """
    hundreds = [max(1, round(len(part) / share / 100)) for part in split.train]
    split.train[:] = [
        part[: 100 * count] for part, count in zip(split.train, hundreds, strict=True)
    ]
    split.test[:] = [part[: len(part) // share] for part in split.test]


def load(folder: Path) -> Workload:
    """Return the output of ``write`` for a reference."""
    experiment = config.load(folder / "experiment.toml")
    dataset, split = datasets.load(experiment.data), Split.load(folder / "partition.h5")
    builder = plugins.find("hpcfl.models", "model.name", experiment.model.name)

    def model() -> nn.Module:
        return builder(dataset.shape, dataset.classes, **experiment.model.options)

    torch.manual_seed(0)
    training = experiment.training
    return Workload(
        dataset.normalise(dataset.x),
        dataset.y,
        *(
            [torch.from_numpy(part) for part in parts]
            for parts in (split.train, split.test)
        ),
        model,
        training.batch_size,
        training.epochs,
        training.lr,
        any(isinstance(part, nn.Conv2d) for part in model().modules()),
    )
