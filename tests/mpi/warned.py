"""The command, with a rank that receives a warning during Python's finalisation."""

import ctypes
import os
import signal
import sys

from hpcfl.__main__ import main


class Late:
    def __del__(
        self, write=os.write, kill=os.kill, rank=os.getpid, warning=signal.SIGUSR1
    ):
        write(1, b"warned\n")
        kill(rank(), warning)


sys.late = (
    Late()
    # this module is one of the last that are removed, long after Python's signal handlers
)
try:
    main()
except SystemExit as leaving:
    ctypes.pythonapi.Py_Exit(
        leaving.code
    )  # as Python does, also if the process was forked
