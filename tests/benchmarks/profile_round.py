"""Where the time of a round goes: ``python tests/benchmarks/profile_round.py [W1 | W2 |
W3 | dropout] [--device cuda]`` writes ``results/benchmarks/profile-w1.txt`` and so on, or
``profile-gpu.txt`` of CIFAR-10.

One process trains the smaller half of the clients, without scoring, under the torch
profiler.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import workloads
from torch.profiler import ProfilerActivity, profile

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare

OUT = Path(__file__).parents[2] / "results" / "benchmarks"
# The round that is looked at, after others that warm up: a step is replayed from its
# 101st call on.
ROUNDS = {"W1": 2, "W2": 15, "W3": 150, "dropout": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "workload", nargs="?", default="W1", choices=ROUNDS, help="on a CPU"
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a GPU")
    options = parser.parse_args()
    workload, device = options.workload, options.device
    name, rounds, order, activities = (
        (
            workload.lower(),
            ROUNDS[workload],
            "self_cpu_time_total",
            [ProfilerActivity.CPU],
        )
        if device == "cpu"
        else (
            "gpu",
            5,
            "self_device_time_total",
            [ProfilerActivity.CPU, ProfilerActivity.CUDA],
        )
    )
    workload = workload if device == "cpu" else "CIFAR-20"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / workload
        workloads.write(workload, folder)
        overrides = [
            f"partition.file={folder}/partition.h5",
            f"evaluation.every={workloads.NEVER}",
            f"runtime.device={device}",
        ]
        prepared = prepare(
            config.load(folder / "experiment.toml", overrides), OneProcess()
        )
    sizes = prepared.setup.samples.numpy()
    ids = np.sort(np.argsort(sizes)[: len(sizes) // 2])
    inbox = {"model": prepared.server["model"].to(prepared.resources.device)}
    for round in range(1, rounds + 1):  # all but the last warm up
        with (
            profile(activities=activities)
            if round == rounds
            else nullcontext() as record
        ):
            prepared.method.update(
                prepared.fleet(ids, round, scored=False), dict(inbox)
            )
    table = record.key_averages().table(
        sort_by=order, row_limit=25, max_name_column_width=48
    )
    (OUT / f"profile-{name}.txt").write_text(
        f"{len(ids)} clients, {int(sizes[ids].sum())} samples, batch {prepared.config.training.batch_size}, "
        "one thread\n" + "\n".join(line.rstrip() for line in table.splitlines()) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
