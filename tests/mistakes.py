"""Mistakes in a user's methods and models, and models that cannot be batched, named as
'mistakes:…'.
"""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.communication.message import Mean
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.data.sources.base import Source
from hpcfl.methods._anchored import MixedAnchor
from hpcfl.methods.base import Method, OwnOverlay
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.mr_mtl import MRMTL

number = 3


class Nothing:
    """A class that is neither a method nor a partition scheme."""


class Unfinished(Method):
    """A method without required hooks."""


class TakesAnother(FedAvg):
    def __init__(self, x):
        self.x = x


class VectorLoss(FedAvg):
    def loss(self, model, batch, lane):
        return functional.cross_entropy(model(batch.x), batch.y, reduction="none")


class NumberLoss(FedAvg):
    def loss(self, model, batch, lane):
        return 0.5


class MisspeltPrimary(FedAvg):
    primary = "pots"


class NoTrained(FedAvg):
    def local_train(self, fleet, rows, inbox):
        super().local_train(fleet, rows, inbox)


class BareRows(FedAvg):
    def client_model(self, fleet, inbox, rows, trained):
        return rows


class FreeLoss(FedAvg):
    def loss(self, model, batch, lane):
        return batch.x.mean()


class UnknownVariable(FedAvg):
    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, variables={"received": fleet.rows(rows)})

    def loss(self, model, batch, lane):
        return super().loss(model, batch, lane) + lane.recieved.sum()


class OneRowOfAll(FedAvg):
    def local_train(self, fleet, rows, inbox):
        received = {"received": self.received(fleet, inbox)}
        return fleet.train(rows, variables=received)


class MeanUpload(FedAvg):
    def update(self, fleet, inbox):  # one row for all clients
        return {"model": super().update(fleet, inbox)["model"].tensor.mean(dim=0)}


class ShortUpload(FedAvg):
    def update(self, fleet, inbox):
        whole = super().update(fleet, inbox)["model"]
        return {"model": Mean(whole.tensor[:, 1:], whole.weights)}


class SharedWeights(FedAvg):
    def shares(self, fleet):
        return super().shares(fleet) / fleet.setup.samples.sum()


class WrongState(FedAvg):
    def client_state(self, setup):
        return {"last": torch.zeros(3)}

    def store_state(self, fleet, trained):
        fleet.state["last"] = trained


class Counting(FedAvg):
    def store_state(self, fleet, trained):
        self.calls = fleet.round


class MisspeltUpload(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"] = uplink["modle"].mean(dim=0)


class ChangesInPlace(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"] += 1


class KeepsModel(FedAvg):
    def aggregate(self, server, cohort, uplink):
        torch.lerp(server["model"], uplink["model"], 0.5)  # is lost


class KeepsUplink(OwnOverlay):
    def aggregate(self, server, cohort, uplink):
        uplink["model"].clamp(-1, 1)  # is lost


class NoisyServer(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"] = uplink["model"] + torch.randn(uplink["model"].shape)


class NoisyUpload(FedAvg):
    def upload(self, fleet, inbox, trained):
        return super().upload(fleet, inbox, trained * np.random.rand())


class NoisyStep(FedAvg):
    def local_train(self, fleet, rows, inbox):
        def step(context):
            context.set_rows(torch.rand_like(context.rows()))

        return fleet.train_by(step, rows)[0]


class CountsRounds(FedAvg):
    """A server that keeps the number of its steps in the class."""

    steps: ClassVar[list[int]] = []

    def aggregate(self, server, cohort, uplink):
        self.steps.append(cohort.round)
        server["model"] = uplink["model"] / len(self.steps)


class CountsLosses(FedAvg):
    """A loss with a factor that the class keeps."""

    calls: ClassVar[list[int]] = []

    def loss(self, model, batch, lane):
        self.calls.append(1)
        return super().loss(model, batch, lane) * len(self.calls)


class UnseededServer(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"] = uplink["model"] * np.random.default_rng().random()


class HalvesUpload(MRMTL):
    def upload(self, fleet, inbox, trained):
        return super().upload(fleet, inbox, trained.mul_(0.5))


class HalvesMessage(OwnOverlay):
    def upload(self, fleet, inbox, message):
        message["model"].tensor.mul_(0.5)
        return message


class NormOfAll(FedAvg):
    def update(self, fleet, inbox):
        whole = super().update(fleet, inbox)["model"]
        return {"model": Mean(whole.tensor / whole.tensor.norm(), whole.weights)}


class StateOfAll(FedAvg):
    def client_state(self, setup):
        return {"mean": torch.zeros(setup.layout.width)}

    def local_train(self, fleet, rows, inbox):
        trained = super().local_train(fleet, rows, inbox)
        fleet.state["mean"] = fleet.rows(trained.mean(dim=0))
        return trained


class ScoreOfAll(FedAvg):
    def client_model(self, fleet, inbox, rows, trained):
        return super().client_model(fleet, inbox, fleet.rows(rows).mean(dim=0), trained)


class RecordOfAll(FedAvg):
    def local_train(self, fleet, rows, inbox):
        trained = super().local_train(fleet, rows, inbox)
        fleet.record("length", trained.norm(dim=1) / trained.norm())
        return trained


class OverlayOfAll(OwnOverlay):
    def upload(self, fleet, inbox, message):
        whole = message["model"]
        return {"model": Mean(whole.tensor / whole.tensor.norm(), whole.weights)}


class SendsMean(MixedAnchor):
    """A server that sends the mean of the receivers' models, as if they were a cohort."""

    def compute_strength(self):
        return 1.0

    def compute_attraction(self, models, receivers, senders):
        raise NotImplementedError

    def send(self, server, audience):
        return {"anchor": server["models"][audience.ids].mean(dim=0)}


class Item(FedAvg):
    def loss(self, model, batch, lane):
        value = super().loss(model, batch, lane)
        return value / max(1e-3, value.item())


class Branch(FedAvg):
    def loss(self, model, batch, lane):
        value = super().loss(model, batch, lane)
        return 2 * value if value > 1 else value


class Odd(FedAvg):
    """A server that accepts only different messages and more than one client."""

    def aggregate(self, server, cohort, uplink):
        if len(uplink["rows"].unique(dim=0)) < 2:
            raise ValueError("all messages are equal")
        super().aggregate(server, cohort, uplink)

    def upload(self, fleet, inbox, trained):
        return {**super().upload(fleet, inbox, trained), "rows": trained}


class Image(nn.Module):
    """A linear model of an image."""

    def __init__(self, shape, classes, *, inputs: int = 64, outputs: int | None = None):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs or classes)

    def forward(self, x):
        return self.linear(x.flatten(1))


class Unbatched(Image):
    def forward(self, x):
        return super().forward(x)[0]


def sequential(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(63, classes))


def of_shape_alone(shape):
    return Image(shape, 10)


class Recurrent(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.cell = nn.RNN(shape[-1], 12, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.cell(x[:, 0])[0][:, -1])


class Reversed(Image):
    """A model with a hook, which torch does not call in a batch of clients."""

    def forward(self, x):
        logits = super().forward(x)
        if logits.requires_grad:
            logits.register_hook(torch.neg)
        return logits


class Padded(Image):
    """A model that scales its inputs by vectors, the first ones of padding.

    In a batch of clients torch leaves out the padding's gradient for the first one.
    """

    def __init__(self, shape, classes):
        super().__init__(shape, classes, inputs=shape[0])
        self.vectors = nn.Parameter(torch.ones(3, 1))

    def forward(self, x):
        tokens = (x > 0.5).long()
        scales = functional.embedding(tokens, self.vectors, padding_idx=0)
        return super().forward(x * scales[..., 0])


class Unreadable(Source):
    built_in = True

    def read(self, name, root):
        return open(root / "missing.csv")


class Undrawable(Scheme):
    def draw(self, labels, classes, official_test):
        return labels[len(labels)]


class Sorted(Scheme):
    def draw(self, labels, classes, official_test):
        labels.sort()


class Shuffled(Scheme):
    def draw(self, labels, classes, official_test):
        order = np.random.permutation(len(labels))
        parts = np.array_split(order, 2 * self.clients)
        return Draw(parts[::2], parts[1::2])


unreadable = Unreadable()
