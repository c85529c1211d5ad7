"""``hpcfl bench``: time a few rounds of an experiment on the ranks at hand and project
the whole run.
"""

import json
import resource
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hpcfl.clients.execution import SerialKernel, Session
from hpcfl.clients.losses import Batch
from hpcfl.clients.resources import LaneSteps
from hpcfl.commands.run import PUBLISH_EVERY, check_world
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.experiment import config, sweep
from hpcfl.experiment.config import Config
from hpcfl.files import scratch
from hpcfl.simulation import preflight
from hpcfl.simulation.federation import Federation
from hpcfl.simulation.prepare import Prepared, prepare_together
from hpcfl.simulation.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import MetricsWriter

PHASES = ("send", "train", "score", "gather", "aggregate")
# side of the square float32 matrices whose product measures a device's peak
MATRIX = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Report:
    """What the timed rounds showed; the first round, which warms up, is left out.

    seconds_per_round: median.
    rounds: seconds of each.
    warm_up: seconds of the first round.
    phases: median seconds: train and score of the slowest worker, the rest of rank 0.
    samples_per_second: trained by all workers together.
    lane_occupancy: the share of the computed lane-steps in which a client had a
        mini-batch.
    lanes_per_step: how many clients a step advanced, on average; clients that have
        finished leave it.
    share_of_peak: operations a second in training, as a share of ``peak_gflops``.
    peak_gflops: of float32 matrix products on all workers at the same time.
    memory_mb: by rank, the most that its process held in memory.
    device_memory_mb: by rank, the most that torch allocated on its GPU.
    projected_seconds: of the whole experiment; without its scoring if that was not
        measured.
    scoring_measured: whether a timed round was scored.
    mb_down: median of what rank 0 sent to the workers in a round.
    mb_up: median of what rank 0 received from the workers in a round.
    """

    seconds_per_round: float
    rounds: list[float]
    warm_up: float
    phases: dict[str, float]
    samples_per_second: float
    lane_occupancy: float
    lanes_per_step: float
    share_of_peak: float
    peak_gflops: float
    memory_mb: list[float]
    device_memory_mb: list[float]
    projected_seconds: float
    scoring_measured: bool
    mb_down: float
    mb_up: float

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
    prepared = preflight.run(prepared, communicator)
    communicator.watch(experiment.runtime.hang_after)
    # Ranks wait here and measure together: those of a node share its cores or its GPU.
    communicator.allreduce_max(0)
    peak, flops = 0.0, 0.0
    if prepared.store.ids:
        peak, flops = _peak(prepared.resources.device), _flops(prepared)
    records, lane_steps = _play(prepared, communicator, numbers)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # bytes
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    measured = [peak, flops, asdict(lane_steps), resident / 1e6, on_gpu / 1e6]
    ranks = communicator.gather(measured)
    return None if ranks is None else _report(experiment, records, ranks)


def _round_numbers(experiment: Config, rounds: int) -> list[int]:
    """The numbers of the rounds to play: one to warm up, then ``rounds`` that are
    timed.

    If none of them would be scored, round ``evaluation.every`` comes on top, if the
    experiment has it.
    """
    numbers, every = list(range(1, rounds + 2)), experiment.evaluation.every
    if numbers[-1] < every <= experiment.rounds:
        numbers.append(every)
    return numbers


def _play(
    prepared: Prepared, communicator: Communicator, numbers: list[int]
) -> tuple[list[dict[str, Any]], LaneSteps]:
    """Play the rounds; return what rank 0 recorded, and this rank's lane-steps of all
    but the first.
    """
    records: list[dict[str, Any]] = []
    with (
        scratch.temporary_folder() as folder,
        StopRequest(lambda: communicator.abort(1)) as request,
    ):
        metrics = None
        if communicator.is_server:
            metrics = MetricsWriter(folder, {}, {}, PUBLISH_EVERY)
        federation = Federation(
            communicator,
            prepared,
            prepared.server,
            Checkpoints(folder / "checkpoints", communicator),
            metrics,
            meta={},
            report=lambda number, values: records.append(values),
        )
        for number in numbers:
            if number == numbers[1]:
                prepared.resources.lane_steps.clear()
            federation.play(number, request)
        federation.record_rounds()
    return records, prepared.resources.lane_steps


def _report(
    experiment: Config, played: list[dict[str, Any]], ranks: list[list[Any]]
) -> Report:
    """The report; ``played``: by round, from rank 0; ``ranks``: what ``measure``
    gathered.
    """
    first, *records = played
    peaks, flops, lane_steps_of_ranks, resident, device = zip(*ranks, strict=True)
    totals: dict[str, int] = {}
    for steps in lane_steps_of_ranks:
        for name, count in steps.items():
            totals[name] = totals.get(name, 0) + count
    lane_steps = LaneSteps(**totals)

    def median(name: str) -> float:
        return float(statistics.median(record[name] for record in records))

    seconds = [record["seconds/round"] for record in records]
    scoring = [record["seconds/score"] for record in records]
    scoring = [of_round for of_round in scoring if of_round > 0]
    phases = {name: median(f"seconds/{name}") for name in PHASES}
    phases["score"] = statistics.median(scoring) if scoring else 0.0
    unscored = statistics.median(
        record["seconds/round"] - record["seconds/score"] for record in records
    )
    # every so many rounds, rounded up, and the final scoring
    scored_rounds = -(-experiment.rounds // experiment.evaluation.every) + 1
    rate = lane_steps.samples / sum(seconds)
    return Report(
        seconds_per_round=statistics.median(seconds),
        rounds=seconds,
        warm_up=first["seconds/round"],
        phases=phases,
        samples_per_second=rate,
        lane_occupancy=lane_steps.needed / max(1, lane_steps.computed),
        lanes_per_step=lane_steps.computed / max(1, lane_steps.batched),
        share_of_peak=rate * max(flops) / sum(peaks),
        peak_gflops=sum(peaks) / 1e9,
        memory_mb=list(resident),
        device_memory_mb=list(device),
        projected_seconds=experiment.rounds * unscored
        + scored_rounds * phases["score"],
        scoring_measured=bool(scoring),
        mb_down=median("bytes_down") / 1e6,
        mb_up=median("bytes_up") / 1e6,
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
    session = Session(
        kernel,
        parameters | buffers,
        list(parameters),
        lambda model, batch, lane: model(batch.x).sum(),
    )
    with FlopCounterMode(display=False) as counter:
        session.gradients(slice(None), Batch(x[None], y[None]), {})
    operations: int = counter.get_total_flops()
    return operations / len(y)
