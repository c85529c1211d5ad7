"""Reference: FedAvg as common libraries run it, in one process, as ``python
reference.py``.

It trains one client after the other with a ``DataLoader`` for each and torch's default
threads. With ``--score`` it scores the start model and the trained model of every
client on its test samples by the same loader, with batch 10; training has the
workload's batch size.
"""

import argparse
import copy
import json
import time

import torch
import torch.nn.functional as functional
from torch.utils.data import DataLoader, TensorDataset
from workloads import ROOT_OPTIONS, load

LOADER_BATCH = 10  # batch size of scoring
torch.backends.cudnn.allow_tf32 = False  # as in the compared experiment


def main():
    options = argparse.ArgumentParser(parents=[ROOT_OPTIONS]).parse_args()
    workload, device = load(options.folder), torch.device("cpu")
    model = workload.model().to(device)
    sets = [
        [TensorDataset(workload.x[index], workload.y[index]) for index in part]
        for part in (workload.train, workload.test)
    ]
    seconds = []
    for _ in range(options.rounds + 1):
        begun = time.perf_counter()
        clients = []
        for train, test in zip(*sets, strict=True):
            client = copy.deepcopy(model)
            if options.score:
                score(client, test, device)
            fit(
                client, train, workload.batch_size, workload.epochs, workload.lr, device
            )
            if options.score:
                score(client, test, device)
            clients.append((len(train), client))
        average(model, clients)
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds[1:]))


def fit(
    model: torch.nn.Module,
    samples: TensorDataset,
    batch_size: int,
    epochs: int,
    lr: float,
    device: torch.device,
):
    """Train a model by local SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in DataLoader(samples, batch_size, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()


@torch.no_grad()
def score(
    model: torch.nn.Module, samples: TensorDataset, device: torch.device
) -> float:
    """Return the number of correct answers."""
    return sum(
        (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        for x, y in DataLoader(samples, LOADER_BATCH)
    )


@torch.no_grad()
def average(model: torch.nn.Module, clients: list[tuple[int, torch.nn.Module]]):
    """Return the mean of the clients' models, weighted by samples."""
    total = sum(count for count, _ in clients)
    for name, parameter in model.named_parameters():
        parameter.copy_(
            sum(count / total * client.get_parameter(name) for count, client in clients)
        )


if __name__ == "__main__":
    main()
