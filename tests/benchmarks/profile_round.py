"""Where the time of a W1 round goes: ``python tests/benchmarks/profile_round.py``
writes ``results/benchmarks/profile-w1.txt``.

One process trains the smaller half of W1's clients, without scoring, under the torch profiler.
"""

import tempfile
from pathlib import Path

import numpy as np
import workloads
from torch.profiler import ProfilerActivity, profile

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.preparation.prepare import prepare

OUT = Path(__file__).parents[2] / "results" / "benchmarks" / "profile-w1.txt"


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "W1"
        workloads.write("W1", folder)
        overrides = [f"partition.file={folder}/partition.h5", f"evaluation.every={workloads.NEVER}"]
        prepared = prepare(config.load(folder / "experiment.toml", overrides), OneProcess())
    sizes = prepared.setup.counts.sum(dim=1).numpy()
    ids = np.sort(np.argsort(sizes)[:len(sizes) // 2])
    for round in (1, 2):  # the first warms up
        with profile(activities=[ProfilerActivity.CPU]) as record:
            prepared.method.update(prepared.fleet(ids, round, scored=False),
                                   {"model": prepared.server["model"]})
    table = record.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=48)
    OUT.write_text(f"{len(ids)} clients, {int(sizes[ids].sum())} samples, batch 10, one thread\n"
                   + "\n".join(line.rstrip() for line in table.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
