"""``hpcfl bench``: time a few rounds of an experiment on the ranks at hand and project
the whole run.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hpcfl import trial
from hpcfl.commands.run import PUBLISH_EVERY, check_world
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.experiment import config, sweep
from hpcfl.experiment.config import Config
from hpcfl.fleet.execution import SerialKernel
from hpcfl.fleet.losses import Batch
from hpcfl.fleet.resources import LaneSteps
from hpcfl.preparation.prepare import Prepared, prepare_together
from hpcfl.rounds.federation import Federation
from hpcfl.rounds.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import MetricsWriter

PHASES = ("send", "train", "score", "gather", "aggregate")
# side of the square float32 matrices whose product measures a device's peak
MATRIX = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Report:
    """What the timed rounds showed; the first round, which warms up, is left out."""

    seconds_per_round: float  # median
    rounds: list[float]  # seconds of each
    warm_up: float  # seconds of the first round
    phases: dict[
        str, float
    ]  # median seconds: train and score of the slowest worker, the rest of rank 0
    samples_per_second: float  # trained by all workers together
    lane_occupancy: (
        float  # share of the computed lane-steps in which a client had a mini-batch
    )
    # how many clients a step advanced, on average; clients that have finished leave it
    lanes_per_step: float
    share_of_peak: (
        float  # operations a second in training, as a share of ``peak_gflops``
    )
    peak_gflops: float  # of float32 matrix products on all workers at the same time
    memory_mb: list[float]  # by rank: the most its process held in memory
    device_memory_mb: list[float]  # by rank: the most that torch allocated on its GPU
    projected_seconds: (
        float  # of the whole experiment; without its scoring if that was not measured
    )
    scoring_measured: bool  # whether a timed round was scored
    mb_down: float  # median of what rank 0 sent to the workers in a round
    mb_up: float  # median of what rank 0 received from the workers in a round

    def text(self) -> str:
        """The report as lines for a terminal."""
        phases = "  ".join(
            f"{name} {seconds:.3g}" for name, seconds in self.phases.items()
        )
        memory = ", ".join(f"{megabytes:,.0f}" for megabytes in self.memory_mb)
        device = (
            f", on the device {max(self.device_memory_mb):,.0f}"
            if max(self.device_memory_mb)
            else ""
        )
        scoring = "" if self.scoring_measured else " without scoring"
        return (
            f"seconds per round   {self.seconds_per_round:.3g}   ({phases})\n"
            f"samples per second  {self.samples_per_second:,.0f}\n"
            f"lane-steps          {100 * self.lane_occupancy:.0f} % "
            f"did work, {self.lanes_per_step:.3g} lanes a step\n"
            f"share of peak       {100 * self.share_of_peak:.1f} % of {self.peak_gflops:,.0f} GFLOP/s\n"
            f"memory by rank, MB  {memory}{device}\n"
            f"the whole run       {self.projected_seconds / 3600:.2f} h{scoring}"
        )


def bench_file(
    file: Path,
    overrides: Iterable[str],
    rounds: int,
    as_json: bool,
    communicator: Communicator,
) -> None:
    """Time ``rounds`` rounds of an experiment file and print the report on rank 0.
    Collective.

    Of a sweep the first cell is timed. Nothing that is written stays. Raises UserError
    or RunFailure, on all ranks.
    """
    with agreed(communicator):
        experiment = sweep.expand(config.read(file, overrides), str(file))[0].config
    report = measure(experiment, rounds, communicator)
    if report is not None:
        print(json.dumps(asdict(report), indent=1) if as_json else report.text())


def measure(
    experiment: Config, rounds: int, communicator: Communicator
) -> Report | None:
    """The report on rank 0, None elsewhere. Collective. Raises UserError or RunFailure,
    on all ranks.
    """
    numbers = _round_numbers(experiment, rounds)
    # longer than what is played, because the last round of an experiment is always
    # scored
    longer = experiment.model_copy(
        update={"rounds": max(experiment.rounds, numbers[-1] + 1)}
    )
    with agreed(communicator):
        check_world(communicator)
    prepared = prepare_together(longer, communicator)
    prepared = trial.run(prepared, communicator)
    communicator.watch(experiment.runtime.hang_after)
    communicator.allreduce_max(
        0
    )  # ranks wait here and measure together: those of a node share its cores or its GPU
    has_clients = len(prepared.store.ids) > 0
    peak, flops = (
        (_peak(prepared.resources.device), _flops(prepared))
        if has_clients
        else (0.0, 0.0)
    )
    records, lane_steps = _play(prepared, communicator, numbers)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / 1e6
    own = [
        peak,
        flops,
        asdict(lane_steps),
        resident,
        torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0,
    ]
    ranks = communicator.gather(own)
    return None if ranks is None else _report(experiment, records, ranks)


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def _round_numbers(experiment: Config, rounds: int) -> list[int]:
    """The numbers of the rounds to play: one to warm up, then ``rounds`` that are
    timed.

    If none of them would be scored, round ``evaluation.every`` comes on top, if the
    experiment has it.
    """
    numbers, every = list(range(1, rounds + 2)), experiment.evaluation.every
    return (
        numbers
        if every <= numbers[-1] or every > experiment.rounds
        else [*numbers, every]
    )


def _play(
    prepared: Prepared, communicator: Communicator, numbers: list[int]
) -> tuple[list[dict[str, Any]], LaneSteps]:
    """Play the rounds; return what rank 0 recorded, and this rank's lane-steps of all
    but the first.
    """
    records: list[dict[str, Any]] = []
    with (
        TemporaryDirectory() as scratch,
        StopRequest(lambda: communicator.abort(1)) as request,
    ):
        folder = Path(scratch)
        federation = Federation(
            communicator,
            prepared,
            prepared.server,
            Checkpoints(folder / "checkpoints", communicator),
            MetricsWriter(folder, {}, {}, PUBLISH_EVERY)
            if communicator.is_server
            else None,
            {},
            lambda round, values: records.append(values),
        )
        for number in numbers:
            if number == numbers[1]:
                prepared.resources.lane_steps.clear()
            federation.play(number, request)
        federation.record_last()
    return records, prepared.resources.lane_steps


def _report(
    experiment: Config, played: list[dict[str, Any]], ranks: list[list[Any]]
) -> Report:
    """The report; ``played``: by round, from rank 0; ``ranks``: what ``measure``
    collected.
    """
    first, *records = played
    peaks, flops, lane_steps_of_ranks, resident, device = zip(*ranks, strict=True)
    lane_steps = LaneSteps(
        **{
            name: sum(steps[name] for steps in lane_steps_of_ranks)
            for name in lane_steps_of_ranks[0]
        }
    )
    seconds = [record["seconds/round"] for record in records]
    phases = {
        name: statistics.median(record[f"seconds/{name}"] for record in records)
        for name in PHASES
    }
    scoring = [
        record["seconds/score"] for record in records if record["seconds/score"] > 0
    ]
    phases["score"] = statistics.median(scoring) if scoring else 0.0
    unscored = statistics.median(
        record["seconds/round"] - record["seconds/score"] for record in records
    )
    scored_rounds = (
        -(-experiment.rounds // experiment.evaluation.every) + 1
    )  # and the final scoring
    rate = lane_steps.samples / sum(seconds)
    return Report(
        statistics.median(seconds),
        seconds,
        first["seconds/round"],
        phases,
        rate,
        lane_steps.needed / max(1, lane_steps.computed),
        lane_steps.computed / max(1, lane_steps.batched),
        rate * max(flops) / sum(peaks),
        sum(peaks) / 1e9,
        list(resident),
        list(device),
        experiment.rounds * unscored + scored_rounds * phases["score"],
        bool(scoring),
        *(
            statistics.median(record[name] for record in records) / 1e6
            for name in ("bytes_down", "bytes_up")
        ),
    )


def _peak(device: torch.device) -> float:
    """Floating-point operations a second of a large float32 matrix product, the fastest
    of five.
    """
    side = MATRIX[device.type]
    left = right = torch.ones(side, side, device=device)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best


def _flops(prepared: Prepared) -> float:
    """Floating-point operations to train on one sample: forward and backward through
    the model.
    """
    kernel = SerialKernel(prepared.setup.build().to(prepared.resources.device))
    parameters = {
        name: tensor.detach()[None] for name, tensor in kernel.module.named_parameters()
    }
    buffers = {name: tensor[None] for name, tensor in kernel.module.named_buffers()}
    x, y = prepared.resources.samples.take(torch.zeros(8, dtype=torch.int64))
    session = kernel.session(
        parameters | buffers,
        list(parameters),
        lambda model, batch, lane: model(batch.x).sum(),
    )
    with FlopCounterMode(display=False) as counter:
        session.gradients(slice(None), Batch(x[None], y[None]), {})
    operations: int = counter.get_total_flops()
    return operations / len(y)
