"""Listing of ranks, with the resources and the clients of each."""

import os
from collections.abc import Iterable

import torch

from hpcfl.communication.communicator import Communicator
from hpcfl.simulation.prepare import Prepared

SHOWN = 12  # ranges of clients or cores that are written out


def rank_list(communicator: Communicator, prepared: Prepared) -> list[str]:
    """Return a line for each rank, by rank, on every rank. Collective call.

    For example ``rank 2 on node7 (pid 4711, cores 4-7, 1 thread, cuda:1 NVIDIA A100,
    clients 0-3, 9)``.
    """
    cores = _ranges(os.sched_getaffinity(0))
    clients = prepared.placement.clients_of(communicator.rank).tolist()
    hosts = (
        f"clients {_ranges(clients)}"
        if clients
        else "the server"
        if communicator.is_server
        else "no clients"
    )
    threads = torch.get_num_threads()
    line = (
        f"rank {communicator.rank} on {communicator.host} (pid {os.getpid()}, cores {cores}, {threads} "
        f"thread{'s' if threads > 1 else ''}, {_device(prepared.resources.device)}, {hosts})"
    )
    return communicator.allgather(line)


def _device(device: torch.device) -> str:
    return (
        f"{device} {torch.cuda.get_device_name(device)}"
        if device.type == "cuda"
        else str(device)
    )


def _ranges(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7; of more than SHOWN such ranges the first ones and
    how many are left.
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [
        str(first) if first == last else f"{first}-{last}" for first, last in parts
    ]
    return ", ".join(texts[:SHOWN]) + (
        f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    )
