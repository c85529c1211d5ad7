"""Samples a second of a server that waits for nobody against one that waits:
``mpiexec -n 3 python tests/benchmarks/asynchronous.py``.

1,000 clients with 60 images of MNIST each, of which 100 are at work: cohorts of 100, or
FedBuff with a concurrency of 100 and a buffer of 10, log-normal devices. Local training
is that of McMahan et al. (2017), 5 epochs with mini-batches of 10, or a short one, 1
epoch with mini-batches of 20. Both servers play in the same processes, a block of each
in turn; a block are the rounds in which 300 uploads arrive. Nobody is scored. Compared
are the medians of the blocks, by the wall clock and by the CPU seconds of the busiest
worker, which depend less on who else is at work. Rank 0 writes the table in
``results/benchmarks/asynchronous.md``. Data sets are looked for in $HPCFL_DATA.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import pages

from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.mpi import connect
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare_together
from hpcfl.simulation.round import Round, conclude
from hpcfl.simulation.stages import play as play_stages

COHORT, BUFFER, UPLOADS = 100, 10, 300
TIMES = {
    "synchronous": {"mode": "synchronous"},
    "asynchronous": {
        "mode": "asynchronous",
        "concurrency": COHORT,
        "buffer": BUFFER,
    },
}
ROWS = {
    "cnn, 5 epochs": ({"name": "cnn"}, 5, 10),
    "mlp, 5 epochs": ({"name": "mlp", "hidden": [200]}, 5, 10),
    "mlp, 1 epoch": ({"name": "mlp", "hidden": [200]}, 1, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--row", nargs="+", default=list(ROWS))
    parser.add_argument("--print", action="store_true", help="write no table")
    options = parser.parse_args()
    communicator = connect()
    rows = []
    for row in options.row:
        rows += measure(communicator, row, options.blocks)
    if communicator.is_server:
        text = table(rows)
        print(text)
        if not options.print:
            page = pages.RESULTS / "asynchronous.md"
            pages.replace(page, "asynchronous.py", text)
    communicator.end(0)


def measure(communicator: Communicator, row: str, blocks: int) -> list[list[str]]:
    """Collective. The cells of a row of the table on rank 0."""
    players = {mode: player(communicator, row, mode) for mode in TIMES}
    rates: dict[str, list[tuple[float, float]]] = {mode: [] for mode in TIMES}
    for _ in range(blocks + 1):
        for mode, play in players.items():
            rates[mode].append(play())
    if not communicator.is_server:
        return []
    cells = [row]
    ratios = []
    for clock in (0, 1):
        medians = {
            mode: statistics.median(of_block[clock] for of_block in found[1:])
            for mode, found in rates.items()
        }
        cells += [f"{medians[mode]:,.0f}" for mode in TIMES]
        ratios.append(medians["asynchronous"] / medians["synchronous"])
    cells += [f"{ratio:.2f}" for ratio in ratios]
    cells.append(f"{os.getloadavg()[0]:.1f}")
    return [cells]


def player(
    communicator: Communicator, row: str, mode: str
) -> Callable[[], tuple[float, float]]:
    """Collective. A function that plays a block, and returns samples a second by the
    wall clock and by the CPU seconds of the busiest worker.
    """
    model, epochs, batch_size = ROWS[row]
    experiment = config.parse(
        {
            "rounds": 600,
            "data": {"dataset": "mnist"},
            "partition": {"scheme": "iid", "clients": 1000},
            "participation": {"fraction": COHORT / 1000},
            "evaluation": {"every": 20_000},
            "training": {"epochs": epochs, "batch_size": batch_size},
            "method": {"name": "fedavg"},
            "model": model,
            "time": TIMES[mode],
        }
    )
    prepared = prepare_together(experiment, communicator)
    schedule = make_schedule(prepared, communicator)
    schedule.begin(
        prepared=prepared, communicator=communicator, done=0, last=600, state={}
    )
    each = COHORT if mode == "synchronous" else BUFFER
    done = 0
    samples = prepared.resources.lane_steps

    def play() -> tuple[float, float]:
        nonlocal done
        communicator.allgather(0)
        before = samples.samples
        wall, busy = time.perf_counter(), time.process_time()
        for _ in range(UPLOADS // each):
            done += 1
            plan = schedule.plan(done)
            round = Round(plan, communicator, prepared, prepared.server)
            play_stages(round, schedule.stages(round))
            conclude(round, {})
        told = [
            samples.samples - before,
            time.perf_counter() - wall,
            time.process_time() - busy,
        ]
        of_ranks = communicator.allgather(told)
        count = sum(rank[0] for rank in of_ranks)
        wall_seconds = max(rank[1] for rank in of_ranks)
        cpu_seconds = max(rank[2] for rank in of_ranks[1:])
        return count / wall_seconds, count / cpu_seconds

    return play


def table(rows: list[list[str]]) -> str:
    clocks = ("a second", "a CPU second")
    heads = [f"{mode}, samples {clock}" for clock in clocks for mode in TIMES]
    heads = ["row", *heads, *(f"ratio, {clock}" for clock in clocks), "load"]
    return pages.table(heads, rows)


if __name__ == "__main__":
    main()
