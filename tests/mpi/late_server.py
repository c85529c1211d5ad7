"""The command with a server that goes on late after each exchange: what the workers offer next is there
already. It ends by itself should the ranks wait for each other."""

import signal
import time

from hpcfl.__main__ import main
from hpcfl.communication import mpi

mpi.WIDE_BYTES = 1
wait = mpi.World._wait


def late(world, request):
    wait(world, request)
    for _ in range(5 if world.rank == 0 else 0):
        time.sleep(0.01)
        world._take()


mpi.World._wait = late
signal.alarm(60)
main()
