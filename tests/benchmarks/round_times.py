"""Seconds per round of an experiment file: ``[mpiexec -n RANKS] python
tests/benchmarks/round_times.py FILE [--set SECTION.KEY=VALUE …] [--rounds N]
[--json]``.

A few rounds run on the available ranks, and the duration of the whole run is projected
from them. The first round is a warm-up and left out. Of a sweep the first cell is
timed. Rank 0 prints "round N" to standard error after each round. All written files are
deleted. Values are medians unless stated otherwise.

The report also has the share of the computed lane-steps that trained a client
(``lane_occupancy``), and the number of clients that a step advanced
(``lanes_per_step``).
"""

import argparse
import json
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hpcfl.clients.batch_plan import BatchRun, MiniBatches
from hpcfl.clients.execution.cuda_graphs import GraphKernel, round_up
from hpcfl.commands.run import PUBLISH_EVERY, check_world
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.communication.connection import connect
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import config, sweep
from hpcfl.experiment.config import Config
from hpcfl.simulation import preflight
from hpcfl.simulation.federation import Federation, Result, ignore_result
from hpcfl.simulation.prepare import prepare_together
from hpcfl.simulation.round_schedule import make_untimed
from hpcfl.simulation.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import ResultsWriter

# seconds of the slowest worker for train and score, of rank 0 for the rest
PHASES = ("send", "train", "score", "gather", "aggregate")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    communicator = connect()
    code = 0
    try:
        time_file(options, communicator)
    except (UserError, RunFailure) as error:  # on all ranks
        code = 2 if isinstance(error, UserError) else 1
        if communicator.is_server:
            print(error, file=sys.stderr)
    except Exception:  # possibly only on this rank; the others would wait for it
        traceback.print_exc()
        communicator.abort(1)
    communicator.end(code)


def time_file(options: argparse.Namespace, communicator: Communicator):
    """Time the rounds of a file and print the report on rank 0. Collective."""
    with agreed(communicator):
        table = config.read(options.file, options.overrides)
        experiment, *_ = sweep.expand(table, str(options.file)).values()
    report = measure(experiment, options.rounds, communicator)
    if report is not None:
        print(json.dumps(report, indent=1) if options.as_json else text(report))


def measure(
    experiment: Config, rounds: int, communicator: Communicator
) -> dict[str, Any] | None:
    """Return the report on rank 0, None elsewhere. Collective."""
    numbers = round_numbers(experiment, rounds)
    # longer than the timed rounds, because the last round of an experiment is always
    # scored
    last = max(experiment.rounds, numbers[-1] + 1)
    longer = experiment.model_copy(update={"rounds": last})
    with agreed(communicator):
        check_world(communicator)
    counted, records, cpu = LaneSteps(), [], []
    playing = prepare_rounds(
        longer, communicator, lambda result: records.append(result.values)
    )
    with count_lane_steps(counted), playing as play_round:
        # Ranks wait here and measure together: the ranks of a node share its cores or
        # its GPU.
        communicator.allgather(0)
        for number in numbers:
            if number == numbers[1]:
                vars(counted).update(asdict(LaneSteps()))
            begun = time.process_time()
            play_round(number)
            cpu.append(time.process_time() - begun)
            if communicator.is_server:
                print(f"round {number}", file=sys.stderr, flush=True)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # bytes
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    ranks = communicator.gather([asdict(counted), resident, on_gpu, cpu])
    return None if ranks is None else _report(experiment, records, ranks)


@dataclass
class LaneSteps:
    """Counts of a rank's training; one lane-step is one step of one lane.

    needed: steps that clients must take. computed: computed lane-steps. batched: steps
    if batched lanes count as one. samples: samples that clients were trained on.
    """

    needed: int = 0
    computed: int = 0
    batched: int = 0
    samples: int = 0


@contextmanager
def count_lane_steps(counted: LaneSteps):
    """Count the training of this process in a block."""
    count = MiniBatches.count

    def count_more(batches: MiniBatches, run: BatchRun, *further):
        count(batches, run, *further)
        needed = computed = len(run.lanes)
        if isinstance(batches.kernel, GraphKernel):
            computed = round_up(needed, len(batches.clients))
        counted.needed += needed * run.batches
        counted.computed += computed * run.batches
        counted.batched += run.batches
        counted.samples += run.samples

    MiniBatches.count = count_more  # type: ignore[method-assign]
    try:
        yield
    finally:
        MiniBatches.count = count  # type: ignore[method-assign]


def round_numbers(experiment: Config, rounds: int) -> list[int]:
    """Return the numbers of the rounds to run: one warm-up round, then the timed ones.

    If none of them would be scored, round ``evaluation.every`` is added, if the
    experiment has it.
    """
    numbers, every = list(range(1, rounds + 2)), experiment.evaluation.every
    if numbers[-1] < every <= experiment.rounds:
        numbers.append(every)
    return numbers


@contextmanager
def prepare_rounds(
    experiment: Config,
    communicator: Communicator,
    announce: Callable[[Result], None] = ignore_result,
) -> Iterator[Callable[[int], None]]:
    """Prepare an experiment and give the block a function that plays a round, by its
    number. Written files are deleted. Collective.
    """
    prepared = preflight.run(prepare_together(experiment, communicator), communicator)
    communicator.watch(experiment.runtime.hang_after)
    with (
        TemporaryDirectory() as scratch,
        StopRequest(lambda: communicator.abort(1)) as request,
    ):
        folder, metrics = Path(scratch), None
        if communicator.is_server:
            metrics = ResultsWriter(folder, {}, {}, PUBLISH_EVERY)
        federation = Federation(
            communicator,
            prepared,
            prepared.initial_server_state,
            make_untimed(prepared, communicator),
            Checkpoints(folder / "checkpoints", communicator),
            metrics,
            meta={},
            announce=announce,
        )
        yield lambda number: federation.play_round(number, request)
        federation.record_rounds()


def _report(
    experiment: Config, played: list[dict[str, Any]], ranks: list[list[Any]]
) -> dict[str, Any]:
    """Return the report from rank 0's records and the results of ``measure`` from all
    ranks.
    """
    first, *records = played
    counted, resident, on_gpu, cpu = zip(*ranks, strict=True)
    lane_steps = LaneSteps(
        **{name: sum(steps[name] for steps in counted) for name in counted[0]}
    )

    def median(name: str) -> float:
        return float(statistics.median(record[name] for record in records))

    seconds = [record["seconds/round"] for record in records]
    scoring = [record["seconds/score"] for record in records]
    unscored = statistics.median(
        whole - score for whole, score in zip(seconds, scoring, strict=True)
    )
    scoring = [score for score in scoring if score > 0]
    phases = {name: median(f"seconds/{name}") for name in PHASES}
    phases["score"] = statistics.median(scoring) if scoring else 0.0
    # a fraction of the rounds, rounded up, and the final scoring
    scored_rounds = -(-experiment.rounds // experiment.evaluation.every) + 1
    return {
        "seconds_per_round": statistics.median(seconds),
        "rounds": seconds,
        "cpu": [sum(of_ranks) for of_ranks in zip(*cpu, strict=True)][1:],
        "warm_up": first["seconds/round"],
        "phases": phases,
        "samples_per_second": lane_steps.samples / sum(seconds),
        "lane_occupancy": lane_steps.needed / max(1, lane_steps.computed),
        "lanes_per_step": lane_steps.computed / max(1, lane_steps.batched),
        "memory_mb": [size / 1e6 for size in resident],
        "device_memory_mb": [size / 1e6 for size in on_gpu],
        "projected_seconds": experiment.rounds * unscored
        + scored_rounds * phases["score"],
        "scoring_measured": bool(scoring),
        "mb_down": median("bytes_down") / 1e6,
        "mb_up": median("bytes_up") / 1e6,
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as lines for a terminal."""
    phases = "  ".join(
        f"{name} {seconds:.3g}" for name, seconds in report["phases"].items()
    )
    memory = ", ".join(f"{megabytes:,.0f}" for megabytes in report["memory_mb"])
    on_gpu = max(report["device_memory_mb"])
    scoring = "" if report["scoring_measured"] else " without scoring"
    return (
        f"seconds per round   {report['seconds_per_round']:.3g}   ({phases})\n"
        f"samples per second  {report['samples_per_second']:,.0f}\n"
        f"lane-steps          {100 * report['lane_occupancy']:.0f} % did work, "
        f"{report['lanes_per_step']:.3g} lanes a step\n"
        f"memory by rank, MB  {memory}{f', on a GPU {on_gpu:,.0f}' if on_gpu else ''}\n"
        f"the whole run       {report['projected_seconds'] / 3600:.2f} h{scoring}"
    )


if __name__ == "__main__":
    main()
