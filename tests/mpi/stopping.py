"""The command, with a worker that stops when it should send its rows."""

import os
import signal

from hpcfl.__main__ import main
from hpcfl.communication.mpi import World


def stop(self, *given):
    self._meet()
    os.kill(os.getpid(), signal.SIGSTOP)


if os.environ["PMI_RANK"] == "1":
    World.gather = stop
main()
