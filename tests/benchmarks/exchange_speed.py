"""Messages through ``hpcfl.communication.exchange`` against bare
``Scatterv``/``Gatherv`` of as many bytes.

Run as ``mpiexec -n 3 python exchange_speed.py``. Alternating runs; prints JSON: seconds
of each kind, per repetition, on rank 0.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcfl.communication import exchange
from hpcfl.communication.connection import connect

WIDTH, CLIENTS, REPEATS = 500_000, 50, 7  # of float32: 100 MB a rank


def main() -> None:
    communicator = connect()
    from mpi4py import MPI

    world, workers = MPI.COMM_WORLD, MPI.COMM_WORLD.size - 1
    ids, counts = np.arange(CLIENTS * workers), [0] + [CLIENTS] * workers
    placed = exchange.Placement(
        np.random.default_rng(0).permutation(
            np.repeat(np.arange(1, world.size), CLIENTS)
        ),
        world.size,
    )
    rows = torch.ones(len(ids), WIDTH) if world.rank == 0 else None
    mine = np.ones((counts[world.rank], WIDTH), np.float32)
    flat = [count * WIDTH for count in counts]

    def bare() -> None:
        received = np.empty_like(mine)  # as ours, which hands out new memory
        world.Scatterv(
            None if rows is None else [rows.numpy(), flat, None, MPI.FLOAT], received
        )
        total = None if rows is None else np.empty(rows.shape, np.float32)
        world.Gatherv(mine, None if total is None else [total, flat, None, MPI.FLOAT])

    def ours() -> None:
        exchange.send(
            communicator,
            placed,
            ids,
            None if rows is None else {"model": rows},
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


def timed(move: Callable[[], None], world: Any) -> float:
    world.Barrier()
    begun = time.perf_counter()
    move()
    world.Barrier()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
