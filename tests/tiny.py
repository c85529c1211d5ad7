"""A tiny data set, a partition by class counts, and models and methods that misbehave, named in
configurations as 'tiny:…'."""

import copy
import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from hpcfl.data.datasets import Dataset
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.methods.fedavg import FedAvg
from hpcfl.models._residual import Norm, ResidualNetwork
from hpcfl.models.mlp import MLP

CLASSES, FEATURES, EACH = 4, 5, 60
TEST = 40  # a class's samples from here on are for testing


class Blobs(Source):
    """Four overlapping normal clouds of 60 points each, sorted by class."""

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
    """The same in double precision, for models in double precision."""

    def read(self, name, root):
        data = super().read(name, root)
        return replace(data, x=data.x.double())


blobs, blobs64 = Blobs(), Blobs64()


class Counts(Scheme):
    """Client i trains on the first ``counts[i][c]`` samples of class c: equal rows are identical clients."""

    counts: list[list[int]] = Field(description="training samples by client and class")

    def draw(self, labels, classes, official_test):
        train = [
            np.concatenate([EACH * c + np.arange(n) for c, n in enumerate(row)])
            for row in self.counts
        ]
        test = [
            np.concatenate(
                [EACH * c + np.arange(TEST, EACH) for c, n in enumerate(row) if n]
            )
            for row in self.counts
        ]
        return Draw(train, test)


class Stuck(Counts):
    """The process of rank 1 is stopped while it draws the partition, as by a node that hangs."""

    def draw(self, labels, classes, official_test):
        if os.environ.get("PMI_RANK") == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().draw(labels, classes, official_test)


class Unreadable(Counts):
    """Only the process of rank 1 cannot draw the partition, as where its node lacks a file."""

    def draw(self, labels, classes, official_test):
        if os.environ.get("PMI_RANK") == "1":
            raise UserError("a file is missing on this node")
        return super().draw(labels, classes, official_test)


def mlp64(shape, classes, *, hidden: list[int] = [6]):  # noqa: B006, the annotation of a configuration's key
    """An MLP in double precision."""
    return MLP(shape, classes, hidden=hidden).double()


def zero_row(shape, classes, *, hidden: int = 6):
    """An MLP whose output layer begins with a row of zeros."""
    model = MLP(shape, classes, hidden=(hidden,))
    nn.init.zeros_(model.head.weight[0])
    return model


class Normalised(MLP):
    """An MLP whose input is batch-normalised."""

    def __init__(self, shape, classes, hidden):
        super().__init__(shape, classes, hidden=(hidden,))
        self.norm = nn.BatchNorm1d(FEATURES)
        self.head = self._modules.pop("head")  # the head comes last

    def features(self, x):
        return super().features(self.norm(x))


def dropping(shape, classes, *, share: float = 0.5):
    """A linear model that leaves out a share of its inputs."""
    return nn.Sequential(nn.Dropout(share), nn.Linear(FEATURES, classes))


def normalised(shape, classes, *, hidden: int = 6):
    return Normalised(shape, classes, hidden)


class Branching(MLP):
    """An MLP whose forward depends on numbers, which no graph of torch can hold."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes, hidden=(6,))

    def forward(self, x):
        return super().forward(-x if float(x.sum()) > 0 else x)


def residual(shape, classes, *, norm: Norm = "batch"):
    """ResNet-18 in its three forms, with two stages of 4 and 8 channels instead of four."""
    large = norm == "batch"
    return ResidualNetwork(
        shape, classes, (4, 8), blocks=2, norm=norm, large_stem=large, head_bias=large
    )


class Diverges(FedAvg):
    """FedAvg in which one client's loss is not a number from round ``since`` on; it counts its
    rounds in private."""

    client: int = 1
    since: int = 2
    everyone: bool = False

    def client_state(self, setup):
        return {"rounds": torch.zeros(1)}

    def fit(self, fleet, rows, inbox, **how):
        ill = torch.from_numpy(fleet.ids == self.client) | self.everyone
        factor = torch.where(ill & (fleet.round >= self.since), torch.nan, 1.0)
        fleet.state["rounds"] = fleet.state["rounds"] + 1
        return fleet.train(rows, variables={"factor": factor}, **how)

    def loss(self, model, batch, lane):
        return lane.factor * super().loss(model, batch, lane)


class DivergesInRows(Diverges):
    """The same, whose models travel to the server one by one."""

    def reply(self, fleet, inbox, trained):
        return {"model": trained}

    def aggregate(self, server, cohort, uplink):
        server["model"] = (cohort.weights @ uplink["model"].double()).float()


class Fades(FedAvg):
    """FedAvg whose loss reads a number that changes each round from somewhere else than the lane."""

    def fit(self, fleet, rows, inbox, **how):
        ROUND[0] = fleet.round
        return super().fit(fleet, rows, inbox, **how)

    def loss(self, model, batch, lane):
        return super().loss(model, batch, lane) / ROUND[0]


ROUND = [1]


class Raises(FedAvg):
    """FedAvg in which the rank of one client fails in round 2."""

    client: int = 1

    def fit(self, fleet, rows, inbox, **how):
        if fleet.round == 2 and self.client in fleet.ids:
            raise ZeroDivisionError("a bug in a method")
        return super().fit(fleet, rows, inbox, **how)


class Stops(FedAvg):
    """FedAvg in which the rank of one client is asked to stop in round 2."""

    client: int = 1

    def fit(self, fleet, rows, inbox, **how):
        if fleet.round == 2 and self.client in fleet.ids:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().fit(fleet, rows, inbox, **how)


class SlowEnd(FedAvg):
    """FedAvg whose final scoring takes a minute, if the environment says so."""

    def finish(self, fleet, inbox):
        for _ in range(600 if "SLOW_END" in os.environ and len(fleet.ids) > 1 else 0):
            time.sleep(0.1)
        super().finish(fleet, inbox)


class Wide(FedAvg):
    """FedAvg that in round 1 sends every client a field of its own of ``width · times`` floats and gets
    its double back."""

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
            {"wide": inbox["wide"].mul_(2)} if fleet.round == 1 else {}
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
    method: str | dict[str, Any], counts: list[list[int]] = COUNTS, **sections: Any
) -> dict[str, Any]:
    """An experiment on the tiny data; ``sections`` extend its tables, and replace those where they name
    something else."""
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
