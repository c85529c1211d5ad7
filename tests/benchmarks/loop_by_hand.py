"""Reference: FedAvg as an expert would write it for exactly this experiment, run as
``mpiexec -n CORES python loop_by_hand.py``.

It has one process per core with one thread, clients split by size, and the whole
normalised data in a tensor (channels_last with the weights for convolutions). Batches
are index slices, pooling precedes the ReLU (as in ``hpcfl.models.cnn``), and there is
one Allreduce per round and no scoring. On a GPU the same loop has everything on the
device.
"""

import argparse
import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from workloads import ROOT_OPTIONS, Workload, load

if TYPE_CHECKING:
    from mpi4py import MPI


def main():
    from mpi4py import MPI

    options = argparse.ArgumentParser(parents=[ROOT_OPTIONS]).parse_args()
    world, workload = MPI.COMM_WORLD, load(options.folder)
    seconds = time_rounds(workload, options.rounds, "cpu", world)
    if world.rank == 0:
        print(json.dumps(seconds))


def time_rounds(
    workload: Workload, rounds: int, kind: str, world: "MPI.Comm | None" = None
) -> list[float]:
    """Return the seconds of each round after one warm-up round. world: None for one
    process.
    """
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # as in the compared experiment
    device = torch.device(kind)
    sizes = [len(part) for part in workload.train]
    mine = split_by_size(sizes, world.size)[world.rank] if world else range(len(sizes))
    images = workload.x.dim() == 4 and workload.convolves
    layout = torch.channels_last if images else torch.contiguous_format
    model = workload.model().to(device, memory_format=layout)
    x, y = workload.x.to(device).contiguous(memory_format=layout), workload.y.to(device)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    seconds = []
    for _ in range(rounds + 1):
        if world:
            world.Barrier()
        begun = time.perf_counter()
        average = one_round(model, average, x, y, workload, mine, world)
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]


def one_round(
    model: torch.nn.Module,
    average: list[torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    workload: Workload,
    mine: Iterable[int],
    world: "MPI.Comm | None",
) -> list[torch.Tensor]:
    """Train this rank's clients one after the other and average all models by their
    samples.
    """
    parameters, size = list(model.parameters()), workload.batch_size
    total = sum(len(part) for part in workload.train)
    fewest = (
        2 if any(True for _ in model.buffers()) else 1
    )  # batch norm needs two samples, as in hpcfl
    summed = [torch.zeros_like(tensor) for tensor in average]
    for client in mine:
        with torch.no_grad():
            torch._foreach_copy_(parameters, average)
        pool = workload.train[client].to(x.device)
        for _ in range(workload.epochs):
            order = pool[torch.randperm(len(pool), device=x.device)]
            for start in range(0, len(order), size):
                index = order[start : start + size]
                if len(index) < fewest:
                    continue
                loss = functional.cross_entropy(model(x[index]), y[index])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-workload.lr)
        with torch.no_grad():
            torch._foreach_add_(summed, parameters, alpha=len(pool) / total)
    flat = torch.cat([tensor.flatten() for tensor in summed]).cpu().numpy()
    if world:
        world.Allreduce(flat.copy(), flat)
    pieces = (
        torch.from_numpy(flat).to(x.device).split([tensor.numel() for tensor in summed])
    )
    return [
        tensor.copy_(piece.view(tensor.shape))
        for tensor, piece in zip(summed, pieces, strict=True)
    ]


def split_by_size(sizes: list[int], ranks: int) -> list[list[int]]:
    """Assign clients to ranks, largest first, each to the least loaded rank."""
    loads, clients = [0] * ranks, [[] for _ in range(ranks)]
    for client in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[client]
        clients[rank].append(client)
    return clients


if __name__ == "__main__":
    main()
