"""Run an unchanged checkout of PFLlib (github.com/TsingZ0/PFLlib) for a comparison with
hpcfl.

    cd PFLLIB/system
    python play.py FedAvg 1 FOLDER [all-samples]

``main.py`` runs unchanged, with the options below. It draws its initial weights from the
seed, and the program also writes them to FOLDER for ``model.init``. The additional layers
of GPFL and FedCP start with hpcfl's weights. The order of a client's samples in each epoch
is hpcfl's, so both programs train on the same mini-batches. The program writes the test
accuracies before the training of each round and after the last round to
FOLDER/PFLlib-FedAvg-1.json.

With ``all-samples`` GPFL and FedDBE compute statistics over all training samples, as in
hpcfl. These are GPFL's class shares, which PFLlib counts in the full mini-batches of one
epoch, and FedDBE's mean features, which PFLlib computes from the last mini-batch.
"""

import json
import platform
import random
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.rows import randomness
from hpcfl.simulation.prepare import prepare

DATASET = "MNISTsmall"
SHARED = "-dev cpu -gr 10 -nc 20 -lbs 10 -ls 1 -lr 0.05"
OPTIONS = {
    "FedAvg": "",
    "Local": "",
    "FedRep": "-pls 1",
    "FedALA": "-s 80 -p 2 -et 1",
    "FedDBE": "-klw 50 -mo 1",
    "GPFL": "-lam 0.01 -mu 0.1",
    "FedCP": "-lam 5",
}
# names of the CNN's layers in PFLlib and in hpcfl
LAYERS = {"conv1.0": "conv1", "conv2.0": "conv2", "fc1.0": "fc1", "fc": "head"}
# phases of a client's epochs in a round of hpcfl, in order
PHASES = {"FedRep": ["head", "train"]}


def main(method: str, seed: int, folder: Path, all_samples: bool) -> None:
    """Run PFLlib's ``main.py`` with hpcfl's initial weights and orders of samples.

    Args:
        method: Key of ``OPTIONS``.
        seed: Seed of PFLlib and hpcfl.
        folder: Folder of the results.
        all_samples: Whether GPFL and FedDBE use statistics of all training samples.
    """
    sys.path.insert(0, "")
    torch.set_num_threads(1)
    np.random.seed(seed)
    random.seed(seed)
    set_initial_weights(method, seed, folder)
    set_orders(method, seed)
    if all_samples:
        count_all_samples()
        average_all_samples()
    code = "all-samples" if all_samples else "PFLlib"
    write_accuracies(method, seed, folder / f"{code}-{method}-{seed}.json")
    words = f"-data {DATASET} -algo {method} {SHARED} {OPTIONS[method]}"
    sys.argv = ["main.py", *words.split()]
    runpy.run_path("main.py", run_name="__main__")


def set_initial_weights(method: str, seed: int, folder: Path) -> None:
    """Set the initial weights of PFLlib's models.

    The CNN starts as PFLlib would draw it from the seed; its weights are also written to
    ``folder``. The method's additional layers start with hpcfl's weights.
    """
    from flcore.servers import servercp, servergpfl
    from flcore.trainmodel import models

    torch.manual_seed(seed)
    drawn = models.FedAvgCNN(in_features=1, num_classes=10, dim=1024).state_dict()
    named = {}
    for name, tensor in drawn.items():
        layer, kind = name.rsplit(".", 1)
        named[f"{LAYERS[layer]}.{kind}"] = tensor.clone()
    file = folder / f"init{seed}.safetensors"
    save_file(named, str(file))
    set_initial_state(models.FedAvgCNN, drawn)
    if method not in ("GPFL", "FedCP"):
        return
    own = read_layers(method, seed, file)
    set_initial_state(servergpfl.GCE, select_layers(own, {"embeddings": "embedding"}))
    valve = {"valve.gamma": "Conditional_gamma", "valve.beta": "Conditional_beta"}
    set_initial_state(servergpfl.CoV, select_layers(own, valve))
    set_initial_state(servercp.ConditionalSelection, select_layers(own, {"gate": "fc"}))


def read_layers(method: str, seed: int, file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of hpcfl's initial model, including the method's layers."""
    table = {
        "seed": seed,
        "rounds": 1,
        "data": {"dataset": "pfllib", "file": str(Path("..", "dataset", DATASET))},
        "partition": {"scheme": "by-client"},
        "model": {"name": "cnn", "init": str(file)},
        "method": {"name": method.lower()},
    }
    setup = prepare(config.parse(table), OneProcess()).setup
    return dict(setup.layout.split(setup.initial()))


def select_layers(
    tensors: dict[str, torch.Tensor], names: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Return the tensors of some layers under new names.

    Args:
        tensors: Tensors by name.
        names: New names by old name of the layer.
    """
    found = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            if name.startswith(f"{old}."):
                found[new + name.removeprefix(old)] = tensor
    return found


def set_initial_state(kind: type[nn.Module], state: dict[str, torch.Tensor]) -> None:
    """Load ``state`` into each new module of a class, unless it is empty."""
    draw = kind.__init__

    def begin(module: nn.Module, *arguments: Any, **keywords: Any) -> None:
        draw(module, *arguments, **keywords)
        if state:
            module.load_state_dict(state)

    kind.__init__ = begin


class Orders:
    """Sampler of one client in one round, with a new order in each epoch."""

    def __init__(
        self, size: int, seed: int, phases: list[str], round: int, client: int
    ):
        self.size, self.seed, self.round, self.client = size, seed, round, client
        self.phases = iter(phases)

    def __iter__(self) -> Iterator[int]:
        key = ("shuffle", next(self.phases), self.round, self.client, 0)
        yield from randomness.permutation(self.size, self.seed, *key).tolist()

    def __len__(self) -> int:
        return self.size


def set_orders(method: str, seed: int) -> None:
    """Replace the order of samples in training by hpcfl's order."""
    from flcore.clients import clientbase
    from flcore.clients.clientala import clientALA
    from flcore.clients.clientavg import clientAVG
    from flcore.clients.clientcp import clientCP
    from flcore.clients.clientdbe import clientDBE
    from flcore.clients.clientgpfl import clientGPFL
    from flcore.clients.clientrep import clientRep

    rounds: dict[int, int] = {}  # number of rounds that a client has begun
    training: set[int] = set()  # clients that are training
    load = clientbase.Client.load_train_data

    def load_train_data(client: Any, batch_size: int | None = None) -> DataLoader[Any]:
        loader = load(client, batch_size)
        if client.id not in training:
            return loader
        data = loader.dataset
        phases = PHASES.get(method, ["train"])
        order = Orders(len(data), seed, phases, rounds[client.id], client.id)
        return DataLoader(
            data, loader.batch_size, sampler=order, drop_last=loader.drop_last
        )

    def count_rounds(train: Any) -> Any:
        def train_in_order(client: Any, *arguments: Any) -> None:
            rounds[client.id] = rounds.get(client.id, 0) + 1
            training.add(client.id)
            train(client, *arguments)
            training.remove(client.id)

        return train_in_order

    clientbase.Client.load_train_data = load_train_data
    for kind in (clientALA, clientAVG, clientDBE, clientGPFL, clientRep):
        kind.train = count_rounds(kind.train)
    clientCP.train_cs_model = count_rounds(clientCP.train_cs_model)


def count_all_samples() -> None:
    """Compute the class shares of GPFL's clients from all training samples."""
    from flcore.clients.clientgpfl import clientGPFL

    begin = clientGPFL.__init__

    def begin_with_shares(client: Any, *arguments: Any, **keywords: Any) -> None:
        begin(client, *arguments, **keywords)
        labels = stack_samples(client)[1]
        counts = torch.bincount(labels, minlength=client.num_classes)
        client.sample_per_class = counts / counts.sum()

    clientGPFL.__init__ = begin_with_shares


def average_all_samples() -> None:
    """Compute FedDBE's mean feature from all training samples after the first training."""
    from flcore.servers.serverdbe import FedDBE

    begin = FedDBE.__init__

    def begin_with_mean(server: Any, *arguments: Any) -> None:
        begin(server, *arguments)
        means = []
        for client, weight in zip(server.clients, server.uploaded_weights, strict=True):
            client.model.eval()
            with torch.no_grad():
                features = client.model.base(stack_samples(client)[0])
            means.append(weight * features.mean(dim=0))
        for client in server.clients:
            client.global_mean = torch.stack(means).sum(dim=0)

    FedDBE.__init__ = begin_with_mean


def stack_samples(client: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training samples and labels of a client."""
    pairs = client.load_train_data().dataset
    x, y = zip(*pairs, strict=True)
    return torch.stack(x), torch.stack(y)


def write_accuracies(method: str, seed: int, file: Path) -> None:
    """Write the accuracies after PFLlib saves its results, and omit the training loss."""
    from flcore.servers.serverbase import Server

    save = Server.save_results

    def save_results(server: Any) -> None:
        save(server)
        table = {
            "method": method,
            "seed": seed,
            "options": sys.argv[1:],
            "accuracy": server.rs_test_acc,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }
        text = json.dumps(table)
        file.write_text(text, encoding="utf-8")

    Server.save_results = save_results
    Server.train_metrics = lambda server: ([], [1], [0])


if __name__ == "__main__":
    method, seed, folder, *further = sys.argv[1:]
    main(method, int(seed), Path(folder), all_samples=further == ["all-samples"])
