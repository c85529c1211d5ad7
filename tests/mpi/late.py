"""The command with three ranks, of which rank 2 offers its rows only when those of rank 1 have arrived."""

import os
import time
from pathlib import Path

from hpcfl.__main__ import main
from hpcfl.communication import exchange, mpi, texts

ARRIVED = Path(os.environ["ARRIVED"])
PATIENCE = 6  # seconds
mpi.WIDE_BYTES = 1
texts.HEAD_BYTES, texts.ROOM = 16, 8  # every text has a rest
take, offer = mpi.World._take, exchange.offer


def noting(world):
    take(world)
    if world._under_way.taken and world._mpi.Request.Testall(world._under_way.requests):
        ARRIVED.touch()


def late(communicator, *arguments):
    until = time.monotonic() + PATIENCE
    while communicator.rank == 2 and not ARRIVED.exists():
        assert time.monotonic() < until, "no row travelled while this rank was busy"
        time.sleep(0.01)
    offer(communicator, *arguments)


mpi.World._take, exchange.offer = noting, late
main()
