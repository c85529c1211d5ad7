"""A tiny data set, a partition by class counts, and models and methods with special
behaviour, named in configurations as 'tiny:…'.
"""

import copy
import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import nn

from hpcfl.data.datasets import Dataset
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.experiment.config import Config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.models.mlp import MLP
from hpcfl.models.residual import Norm, ResidualNetwork

CLASSES, FEATURES, EACH = 4, 5, 60
TEST = 40  # first test sample of a class


class Blobs(Source):
    """Four overlapping normal clusters of 60 points each, sorted by class."""

    built_in = True

    def read(self, name, root):
        generator = np.random.default_rng(7)
        y = np.repeat(np.arange(CLASSES), EACH)
        centres = 1.5 * generator.standard_normal((CLASSES, FEATURES))
        x = centres[y] + generator.standard_normal((len(y), FEATURES))
        return Dataset(
            name,
            torch.from_numpy(x).float(),
            torch.from_numpy(y),
            CLASSES,
            scale=1.0,
            mean=(0.0,),
            std=(1.0,),
        )


class Blobs64(Blobs):
    """The same data in double precision."""

    def read(self, name, root):
        data = super().read(name, root)
        return replace(data, x=data.x.double())


blobs, blobs64 = Blobs(), Blobs64()


class Counts(Scheme):
    """Partition in which client i trains on the first ``counts[i][c]`` samples of class
    c; equal rows give identical clients. Newcomers have the first rows.
    """

    counts: list[list[int]] = Field(description="training samples by client and class")

    def draw(self, labels, classes, official_test):
        counts = [*self.counts, *self.counts][: self.clients]
        train = [
            np.concatenate([EACH * c + np.arange(n) for c, n in enumerate(row)])
            for row in counts
        ]
        test = [
            np.concatenate(
                [EACH * c + np.arange(TEST, EACH) for c, n in enumerate(row) if n]
            )
            for row in counts
        ]
        return Draw(train, test)


class Stuck(Counts):
    """Partition during which the process of rank 1 is stopped, as on a node that hangs."""

    def draw(self, labels, classes, official_test):
        if os.environ.get("PMI_RANK") == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().draw(labels, classes, official_test)


class Unreadable(Counts):
    """Partition that fails only in the process of rank 1, as on a node without the
    file.
    """

    def draw(self, labels, classes, official_test):
        if os.environ.get("PMI_RANK") == "1":
            raise UserError("a file is missing on this node")
        return super().draw(labels, classes, official_test)


def zero_head(shape, classes, *, hidden: int = 6):
    """Return an MLP whose output layer is zero."""
    model = MLP(shape, classes, hidden=(hidden,))
    for parameter in model.head.parameters():
        nn.init.zeros_(parameter)
    return model


class Normalised(MLP):
    """Return an MLP with batch norm on its input."""

    def __init__(self, shape, classes, hidden):
        super().__init__(shape, classes, hidden=(hidden,))
        self.norm = nn.BatchNorm1d(FEATURES)
        self.head = self._modules.pop("head")  # the head comes last

    def features(self, x):
        return super().features(self.norm(x))


def _without(model, *frozen):
    """Return the model with these modules or parameters frozen by ``requires_grad``."""
    for name in frozen:
        owner, _, leaf = name.rpartition(".")
        getattr(model.get_submodule(owner), leaf).requires_grad_(False)
    return model


def head_only(shape, classes):
    """Return a frozen random feature extractor with batch norm, and a head."""
    return _without(Normalised(shape, classes, 6), "hidden1", "norm")


def body_only(shape, classes):
    return _without(MLP(shape, classes, hidden=(6, 5)), "head")


def bias_only(shape, classes):
    """Return a model of whose layers only the head and the biases are trained."""
    return _without(
        MLP(shape, classes, hidden=(6, 5)), "hidden1.weight", "hidden2.weight"
    )


def bias_alone(shape, classes):
    """Return a model of which only biases are trained."""
    return _without(bias_only(shape, classes), "head.weight")


def all_frozen(shape, classes):
    return MLP(shape, classes, hidden=(6,)).requires_grad_(False)


class Adapted(nn.Module):
    """A frozen linear layer with a trained correction of rank 2 (LoRA).

    unknown: Whether torch does not know the layer, so that its numbers are no
    parameters.
    """

    def __init__(self, base, unknown):
        super().__init__()
        base.requires_grad_(False)
        weights = {"weight": base.weight.detach(), "bias": base.bias.detach()}
        self.base = partial(functional.linear, **weights) if unknown else base
        self.a = nn.Parameter(torch.randn(2, base.in_features) / 3)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


WEIGHTS = [5]  # source of the frozen layers of ``lora``: a seed instead of a file


def lora(shape, classes, *, unknown: bool = False):
    """Return a model with manual LoRA in both hidden layers, and a trained head."""
    model = MLP(shape, classes, hidden=(6, 5))
    generator = torch.Generator().manual_seed(WEIGHTS[0])
    for name in ("hidden1", "hidden2"):
        base = model.get_submodule(name)
        for parameter in base.parameters():
            parameter.data.normal_(std=0.5, generator=generator)
        setattr(model, name, Adapted(base, unknown))
    return model


def lora_by_rank(shape, classes):
    """Return ``lora`` with other frozen layers on rank 1."""
    model = lora(shape, classes)
    if os.environ.get("PMI_RANK") == "1":
        model.hidden1.base.weight.data.add_(1)
    return model


def tied(shape, classes):
    """Return a model with two hidden layers that share a weight."""
    model = MLP(shape, classes, hidden=(6, 6, 6))
    model.hidden3.weight = model.hidden2.weight
    return model


def dropping(shape, classes, *, share: float = 0.5):
    """Return a linear model that drops a share of its inputs by a function of torch."""
    return Dropping(share, classes)


class Dropping(nn.Module):
    def __init__(self, share, classes):
        super().__init__()
        self.share = share
        self.linear = nn.Linear(FEATURES, classes)

    def forward(self, x):
        return self.linear(functional.dropout(x, self.share, self.training))


def normalised(shape, classes, *, hidden: int = 6):
    return Normalised(shape, classes, hidden)


class Attention(nn.Module):
    """Attention over the positions of [batch, 3, 4]: weighted means by similarity."""

    def forward(self, x):
        return (x @ x.transpose(1, 2)).softmax(dim=2) @ x


class Tokens(nn.Module):
    """Token ids from 0 to 19."""

    def forward(self, x):
        return (4 * x + 10).long().clamp(0, 19)


class Mean(nn.Module):
    """Mean over all positions."""

    def forward(self, x):
        return x.mean(dim=1)


LAYERED = {
    "batch norm": lambda: [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU()],
    "convolution": lambda: [
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 4, 4),
        nn.BatchNorm1d(4),
        nn.Sigmoid(),
        nn.Flatten(),
    ],
    "group norm": lambda: [nn.Linear(5, 8), nn.GroupNorm(2, 8), nn.GELU()],
    "attention": lambda: [
        nn.Linear(5, 12),
        nn.Unflatten(1, (3, 4)),
        Attention(),
        nn.LayerNorm(4),
        Mean(),
        nn.Linear(4, 8),
    ],
    "dropout": lambda: [nn.Dropout(0.3), nn.Linear(5, 8), nn.AlphaDropout(0.2)],
    "embedding": lambda: [Tokens(), nn.Embedding(20, 8, padding_idx=10), Mean()],
}


def layered(shape, classes, *, kind: str = "batch norm"):
    """Return a model with layers whose bits for a client might depend on other clients."""
    return nn.Sequential(*LAYERED[kind](), nn.Linear(8, classes))


class Branching(MLP):
    """An MLP whose forward pass depends on numbers, which a graph of torch cannot
    represent.
    """

    def __init__(self, shape, classes):
        super().__init__(shape, classes, hidden=(6,))

    def forward(self, x):
        return super().forward(-x if float(x.sum()) > 0 else x)


def residual(shape, classes, *, norm: Norm = "batch"):
    """Return ResNet-18 in its three forms, with two stages of 4 and 8 channels instead
    of four stages.
    """
    large = norm == "batch"
    return ResidualNetwork(
        shape, classes, (4, 8), blocks=2, norm=norm, large_stem=large, head_bias=large
    )


class Diverges(FedAvg):
    """FedAvg in which one client's loss is NaN from round ``since`` on; clients count
    their rounds in private state.
    """

    client: int = 1
    since: int = 2
    everyone: bool = False

    def client_state(self, setup):
        return {"rounds": torch.zeros(1)}

    def local_train(self, fleet, rows, inbox):
        ill = torch.from_numpy(fleet.ids == self.client) | self.everyone
        factor = torch.where(ill & (fleet.round >= self.since), torch.nan, 1.0)
        fleet.state["rounds"] = fleet.state["rounds"] + 1
        return fleet.train(rows, variables={"factor": factor})

    def loss(self, model, batch, lane):
        return lane.factor * super().loss(model, batch, lane)


class DivergesInRows(Diverges):
    """The same method with uploads as rows."""

    def upload(self, fleet, inbox, trained):
        return {"model": trained}

    def aggregate(self, server, cohort, uplink):
        server["model"] = (cohort.weights @ uplink["model"].double()).float()


class Raises(FedAvg):
    """FedAvg in which the rank of one client fails in round 2."""

    client: int = 1

    def local_train(self, fleet, rows, inbox):
        if fleet.round == 2 and self.client in fleet.ids:
            raise ZeroDivisionError("a bug in a method")
        return super().local_train(fleet, rows, inbox)


class Stops(FedAvg):
    """FedAvg in which the rank of one client receives a stop signal in round 2."""

    client: int = 1

    def local_train(self, fleet, rows, inbox):
        if fleet.round == 2 and self.client in fleet.ids:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().local_train(fleet, rows, inbox)


class SlowEnd(FedAvg):
    """FedAvg whose final scoring takes a minute if the environment requests it."""

    def finish(self, fleet, inbox):
        for _ in range(600 if "SLOW_END" in os.environ and len(fleet.ids) > 1 else 0):
            time.sleep(0.1)
        super().finish(fleet, inbox)


class Wide(FedAvg):
    """FedAvg that in round 1 sends each client a separate field of ``width · times``
    floats and receives twice its values.
    """

    width: int = 1
    times: int = 1

    def send(self, server, cohort):
        wide = (
            {"wide": torch.ones(len(cohort.ids), self.width * self.times)}
            if cohort.round == 1
            else {}
        )
        return {**super().send(server, cohort), **wide}

    def update(self, fleet, inbox):
        return super().update(fleet, inbox) | (
            {"wide": inbox["wide"] * 2} if fleet.round == 1 else {}
        )

    def aggregate(self, server, cohort, uplink):
        super().aggregate(server, cohort, uplink)
        if (wide := uplink.get("wide")) is not None:
            server["ends"] = torch.stack(
                [wide[:, 0], wide[:, self.width * self.times // 2], wide[:, -1]]
            )

    def server_state(self, setup):
        return {**super().server_state(setup), "ends": torch.zeros(3, setup.clients)}


COUNTS = [
    [8, 3, 0, 0],
    [0, 9, 2, 0],
    [1, 0, 6, 6],
    [0, 0, 5, 10],
    [5, 5, 5, 5],
]  # of five clients
FEW = [
    [2, 1, 0, 0],
    [0, 3, 0, 0],
    [1, 0, 2, 0],
    [0, 0, 1, 2],
    [1, 1, 1, 0],
]  # one mini-batch for each


def table(
    method: str | dict[str, Any], counts: list[list[int]] = COUNTS, **sections
) -> dict[str, Any]:
    """Return an experiment on the tiny data; ``sections`` extend its tables, or replace
    a table that names another plug-in.
    """
    found = {
        "seed": 3,
        "rounds": 3,
        "data": {"dataset": "tiny:blobs"},
        "partition": {
            "scheme": "tiny:Counts",
            "clients": len(counts),
            "counts": counts,
        },
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"lr": 0.1, "batch_size": 4},
        "method": {"name": method} if isinstance(method, str) else method,
    }
    for name, value in copy.deepcopy(sections).items():
        extends = isinstance(value, dict) and "name" not in value
        found[name] = {**found.get(name, {}), **value} if extends else value
    return found


def parse(*arguments, **sections) -> Config:
    """Return the configuration of an experiment, with the arguments of ``table``."""
    return config.parse(table(*arguments, **sections))
