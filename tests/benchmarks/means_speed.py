"""Mean of all clients' models as ranks add it up, compared with gathering all models
and averaging them.

``mpiexec -n 3 python tests/benchmarks/means_speed.py`` prints JSON: seconds on rank 0
of each kind, which alternate in one run, and the largest growth of rank 0's memory.
"""

import json
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from server_step import peak_of_memory

from hpcfl.communication import exchange
from hpcfl.communication.connection import connect
from hpcfl.communication.exchange import place
from hpcfl.communication.message import Mean, Message
from hpcfl.rows import mixing

CLIENTS, WIDTH, REPEATS = 100, 878_538, 9


def main():
    torch.set_num_threads(1)
    communicator = connect()
    if communicator.is_server:  # as in a run
        mixing.use_device(torch.device("cpu"), len(os.sched_getaffinity(0)))
    placed, ids = place([1.0] * CLIENTS, communicator.size), np.arange(CLIENTS)
    samples = torch.from_numpy(
        np.random.default_rng(0).integers(100, 900, CLIENTS)
    ).double()
    own = placed.list_clients(communicator.rank)
    rows, shares = models(own), samples[own]

    def move(message: Message) -> dict[str, torch.Tensor] | None:
        message = message if len(own) else {}
        headers = communicator.allgather(exchange.make_header(message))
        return exchange.gather(communicator, placed, ids, message, headers)

    def gathered() -> torch.Tensor | None:
        arrived = move({"model": rows})
        return arrived and mixing.average(samples / samples.sum(), arrived["model"])

    def added() -> torch.Tensor | None:
        arrived = move({"model": Mean(rows, shares)})
        return arrived and arrived["model"]

    kinds: dict[str, Callable[[], torch.Tensor | None]] = {
        "gathered": gathered,
        "added": added,
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    memory = dict[str, float]()
    for repeat in range(REPEATS + 1):
        for name, kind in kinds.items():
            communicator.allgather(0)
            begun = time.perf_counter()
            if repeat:
                kind()
                seconds[name].append(time.perf_counter() - begun)
            else:
                with peak_of_memory(memory, name):
                    kind()
    if communicator.is_server:
        print(json.dumps({"seconds": seconds, "MB": memory}))
    communicator.end(0)


def models(clients: np.ndarray) -> torch.Tensor:
    """Return models [n, P] close to one model, as after local training."""
    shared = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)) * 0.05
    own = [
        torch.randn(WIDTH, generator=torch.Generator().manual_seed(1 + int(client)))
        for client in clients
    ]
    return shared + 0.01 * torch.stack(own) if own else torch.empty(0, WIDTH)


if __name__ == "__main__":
    main()
