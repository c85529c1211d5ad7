"""Messages through ``hpcfl.communication.exchange`` against bare
``Scatterv``/``Gatherv`` of as many bytes.

Run as ``mpiexec -n 3 python exchange_speed.py [--resnet18]``. Alternating runs; prints
JSON: seconds of each kind, per repetition, on rank 0.

By default bare MPI receives into new memory, as hpcfl does. With --resnet18 it reuses its
buffers, and the rows are the models of 20 clients.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from hpcfl.communication import exchange
from hpcfl.communication.connection import connect

REPEATS = 7
WIDTH, CLIENTS = 500_000, 50  # of float32: 100 MB per rank
RESNET18 = 11_181_642, 10  # with two workers 894 MB


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resnet18", action="store_true")
    reuses = parser.parse_args().resnet18
    width, clients = RESNET18 if reuses else (WIDTH, CLIENTS)
    communicator = connect()
    from mpi4py import MPI

    world, workers = MPI.COMM_WORLD, MPI.COMM_WORLD.size - 1
    ids, counts = np.arange(clients * workers), [0] + [clients] * workers
    placed = exchange.Placement(
        np.random.default_rng(0).permutation(
            np.repeat(np.arange(1, world.size), clients)
        ),
        world.size,
    )
    rows = torch.ones(len(ids), width) if world.rank == 0 else None
    mine = np.ones((counts[world.rank], width), np.float32)
    flat = [count * width for count in counts]

    def make_buffers() -> tuple[np.ndarray, np.ndarray | None]:
        total = None if rows is None else np.empty(rows.shape, np.float32)
        return np.empty_like(mine), total

    kept = make_buffers() if reuses else None

    def bare():
        received, total = kept or make_buffers()
        world.Scatterv(
            None if rows is None else [rows.numpy(), flat, None, MPI.FLOAT], received
        )
        world.Gatherv(mine, None if total is None else [total, flat, None, MPI.FLOAT])

    def ours():
        exchange.send(
            communicator,
            placed,
            ids,
            {} if rows is None else {"model": rows},
            torch.device("cpu"),
        )
        uplink = {"model": torch.from_numpy(mine)} if workers and len(mine) else {}
        exchange.gather(
            communicator,
            placed,
            ids,
            uplink,
            communicator.allgather(exchange.make_header(uplink)),
        )

    found: dict[str, list[float]] = {"bare": [], "ours": []}
    for repeat in range(REPEATS + 1):
        for name, move in (("bare", bare), ("ours", ours)):
            seconds = timed(move, world)
            if repeat:
                found[name].append(seconds)
    if world.rank == 0:
        print(json.dumps(found))
    communicator.end(0)


def timed(move: Callable[[], None], world) -> float:
    world.Barrier()
    begun = time.perf_counter()
    move()
    world.Barrier()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
