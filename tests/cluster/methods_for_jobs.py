"""Methods for jobs: copied next to the experiment file and named there as
'methods_for_jobs:Slow'.
"""

import time
from pathlib import Path

from pydantic import Field

from hpcfl.files import atomic
from hpcfl.methods.fedavg import FedAvg


class Slow(FedAvg):
    """FedAvg with a pause before each aggregation, from round ``since`` on, while a
    file ``slow`` is in the working folder; it raises an error if a file ``broken-SEED``
    is there.
    """

    pause: float = Field(0.0, description="seconds")
    since: int = 3

    def server_state(self, setup):
        if Path(f"broken-{setup.seed}").exists():
            raise RuntimeError("broken on purpose")
        return super().server_state(setup)

    def aggregate(self, server, cohort, uplink):
        if cohort.round >= self.since and Path("slow").exists():
            time.sleep(self.pause)
        super().aggregate(server, cohort, uplink)


class Large(Slow):
    """``Slow`` with server state whose writing takes ``seconds``."""

    seconds: float = 5.0

    def server_state(self, setup):
        atomic.write = _slowed(atomic.write, self.seconds)
        return super().server_state(setup)


def _slowed(write, seconds):
    """Return an ``atomic.write`` that waits before files of a server."""

    def slow(path, data, durable=True):
        if path.name.startswith("server-") and Path("slow").exists():
            time.sleep(seconds)
        write(path, data, durable)

    return write if write.__name__ == "slow" else slow
