"""Profile of a round: ``python tests/benchmarks/profile_round.py [W1 | W2 |
dropout]`` writes ``results/benchmarks/profile-w1.txt`` and so on.

One process trains the smaller half of the clients, without scoring, under the torch
profiler.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import workloads
from torch.profiler import profile

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import Prepared, prepare

OUT = Path(__file__).parents[2] / "results" / "benchmarks"
# The profiled round, after warm-up rounds: a step is replayed from its 101st call on.
ROUNDS = {"W1": 2, "W2": 15, "dropout": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "workload", nargs="?", default="W1", choices=ROUNDS, help="on a CPU"
    )
    workload = parser.parse_args().workload
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / workload
        workloads.write(workload, folder)
        overrides = [
            f"partition.file={folder}/partition.h5",
            f"evaluation.every={workloads.NEVER}",
        ]
        prepared = prepare(
            config.load(folder / "experiment.toml", overrides), OneProcess()
        )
    sizes = prepared.setup.samples.numpy()
    ids = np.sort(np.argsort(sizes)[: len(sizes) // 2])
    record = profile_update(prepared, ids, ROUNDS[workload])
    table = record.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=48
    )
    (OUT / f"profile-{workload.lower()}.txt").write_text(
        f"{len(ids)} clients, {int(sizes[ids].sum())} samples, batch {prepared.config.training.batch_size}, "
        "one thread\n" + "\n".join(line.rstrip() for line in table.splitlines()) + "\n",
        encoding="utf-8",
    )


def profile_update(prepared: Prepared, ids: np.ndarray, rounds: int) -> profile:
    """Return the profile of the last of the given number of rounds of some clients'
    training.
    """
    inbox = {
        "model": prepared.initial_server_state["model"].to(prepared.resources.device)
    }
    for round in range(1, rounds):
        prepared.method.update(
            prepared.make_fleet(ids, round, is_scored=False), dict(inbox)
        )
    with profile() as record:  # of the CPU, and of a GPU if there is one
        prepared.method.update(prepared.make_fleet(ids, rounds, is_scored=False), inbox)
    return record


if __name__ == "__main__":
    main()
