"""Program of test_kill.py: for every folder named on standard input, fork a run that
continues until it is killed.

The fork saves the import of torch for every kill. The run prints its process id and
then each committed round.
"""

import os
import sys
from pathlib import Path

import torch

from hpcfl.communication.communicator import OneProcess
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.manifest import FileLimits
from hpcfl.storage.metrics import ResultsWriter

CLIENTS = 6
TEMPLATE = {"row": torch.zeros(500)}


def state(round):
    """Return server and clients after ``round``: client c was last written in the last
    round that c + 1 divides.
    """
    rows = torch.stack(
        [
            torch.full((500,), float(round - round % (client + 1)))
            for client in range(CLIENTS)
        ]
    )
    server = {
        "model": torch.full((1000 + round % 3,), float(round)),
        "models": rows.repeat(3, 1),  # 36 kB, in parts
    }
    return server, {"row": rows}


def run(folder):
    checkpoints, clients = (
        Checkpoints(
            Path(folder) / "checkpoints", OneProcess(), limits=FileLimits(10_000)
        ),
        ClientStore(range(CLIENTS), TEMPLATE),
    )
    restored = checkpoints.restore(clients)
    Path(folder).mkdir(parents=True, exist_ok=True)
    metrics = ResultsWriter(folder, {}, {})
    round = restored.round if restored else 0
    while True:
        round += 1
        server, rows = state(round)
        for client in range(CLIENTS):
            if round % (client + 1) == 0:
                clients.put([client], {"row": rows["row"][client : client + 1]})
        checkpoints.start(round, server, clients, {})
        metrics.record(round, {"round": round})
        metrics.merge()
        checkpoints.finish()
        os.write(1, f"{round}\n".encode())


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if not process:
            os.write(1, f"{os.getpid()}\n".encode())
            run(line.rstrip("\n"))
        os.waitpid(process, 0)
        os.write(1, b"killed\n")
