"""Methods for jobs: copied beside the experiment file and named there as 'methods_for_jobs:Slow'."""

import time
from pathlib import Path

from pydantic import Field

from hpcfl.methods.fedavg import FedAvg


class Slow(FedAvg):
    """FedAvg with a pause before each aggregation; it raises where a file ``broken-SEED`` lies in the working folder."""

    pause: float = Field(0.0, description="seconds")

    def server_state(self, setup):
        if Path(f"broken-{setup.seed}").exists():
            raise RuntimeError("broken on purpose")
        return super().server_state(setup)

    def aggregate(self, server, cohort, uplink):
        time.sleep(self.pause)
        super().aggregate(server, cohort, uplink)
