"""``hpcfl bench``: a user's own experiment for a few rounds on the machine at hand, and what the whole
run would take."""

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
from hpcfl.fleet.kernels import SerialKernel
from hpcfl.fleet.resources import LaneSteps
from hpcfl.preparation.prepare import Prepared, prepare
from hpcfl.rounds.federation import Federation
from hpcfl.rounds.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import MetricsWriter

PHASES = ("send", "train", "score", "gather", "aggregate")
MATRIX = {"cpu": 1024, "cuda": 8192}  # side of the float32 product that measures a device's peak


@dataclass(frozen=True)
class Report:
    """Medians over the timed rounds; the first, which warms up, is left out."""

    seconds_per_round: float
    rounds: list[float]  # seconds of each
    phases: dict[str, float]  # seconds: train and score of the slowest worker, the rest of rank 0
    samples_per_second: float  # trained
    lane_occupancy: float  # mini-batches of clients per lane-step that was computed
    lanes_per_step: float  # how many clients a step advanced, on average; clients that have finished leave it
    share_of_peak: float  # of the float32 matrix product that all workers reach side by side
    peak_gflops: float
    memory_mb: list[float]  # the most each rank held, resident
    device_memory_mb: list[float]
    projected_seconds: float  # of the experiment's own rounds and scored rounds
    scoring_measured: bool
    mb_down: float  # that rank 0 sent to the other ranks in a round, and what it received
    mb_up: float

    def text(self) -> str:
        phases = "  ".join(f"{name} {seconds:.3g}" for name, seconds in self.phases.items())
        memory = ", ".join(f"{megabytes:,.0f}" for megabytes in self.memory_mb)
        device = f", on the device {max(self.device_memory_mb):,.0f}" if max(self.device_memory_mb) else ""
        scoring = "" if self.scoring_measured else " without scoring"
        return (f"seconds per round   {self.seconds_per_round:.3g}   ({phases})\n"
                f"samples per second  {self.samples_per_second:,.0f}\n"
                f"lane-steps          {100 * self.lane_occupancy:.0f} % "
                f"did work, {self.lanes_per_step:.3g} lanes a step\n"
                f"share of peak       {100 * self.share_of_peak:.1f} % of {self.peak_gflops:,.0f} GFLOP/s\n"
                f"memory by rank, MB  {memory}{device}\n"
                f"the whole run       {self.projected_seconds / 3600:.2f} h{scoring}")


def bench_file(file: Path, overrides: Iterable[str], rounds: int, as_json: bool,
               communicator: Communicator) -> None:
    """Time ``rounds`` rounds of the experiment (of a sweep the first cell). Collective; writes
    nothing that stays."""
    with agreed(communicator):
        experiment = sweep.expand(config.read(file, overrides), str(file))[0].config
    report = measure(experiment, rounds, communicator)
    if report is not None:
        print(json.dumps(asdict(report), indent=1) if as_json else report.text())


def measure(experiment: Config, rounds: int, communicator: Communicator) -> Report | None:
    """The report on rank 0, None elsewhere. Collective. Raises UserError or RunFailure, on all ranks."""
    plan = _plan(experiment, rounds)
    longer = experiment.model_copy(update={"rounds": max(experiment.rounds, plan[-1] + 1)})
    with agreed(communicator):
        check_world(communicator)
        prepared = prepare(longer, communicator)
    prepared = trial.run(prepared, communicator)
    communicator.watch(experiment.runtime.hang_after)
    communicator.agree(0)  # all at once: the ranks of a node share its cores or its GPU
    works = len(prepared.store.ids) > 0
    peak, flops = (_peak(prepared.resources.device), _flops(prepared)) if works else (0.0, 0.0)
    lines, lane_steps = _play(prepared, communicator, plan)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / 1e6
    mine = [peak, flops, asdict(lane_steps), resident,
            torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0]
    ranks = communicator.collect(mine)
    return None if ranks is None else _report(experiment, lines, ranks)


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def _plan(experiment: Config, rounds: int) -> list[int]:
    """Round numbers to play: the first warms up; one more where none of them would be scored but some
    of the run are."""
    plan, every = list(range(1, rounds + 2)), experiment.evaluation.every
    return plan if every <= plan[-1] or every > experiment.rounds else [*plan, every]


def _play(prepared: Prepared, communicator: Communicator,
          plan: list[int]) -> tuple[list[dict[str, Any]], LaneSteps]:
    """The rounds of the plan; what rank 0 recorded of each but the first, and this rank's lane-steps."""
    lines: list[dict[str, Any]] = []
    with TemporaryDirectory() as scratch, StopRequest(lambda: communicator.abort(1)) as request:
        folder = Path(scratch)
        federation = Federation(communicator, prepared, prepared.server,
                                Checkpoints(folder / "checkpoints", communicator),
                                MetricsWriter(folder, {}, {}, PUBLISH_EVERY) if communicator.is_server
                                else None, {}, lambda round, values: lines.append(values))
        for number in plan:
            if number == plan[1]:
                prepared.resources.lane_steps.clear()
            federation.play(number, request)
        federation.record()
    return lines[1:], prepared.resources.lane_steps


def _report(experiment: Config, lines: list[dict[str, Any]], ranks: list[list[Any]]) -> Report:
    peaks, flops, works, resident, device = zip(*ranks, strict=True)
    lane_steps = LaneSteps(**{name: sum(one[name] for one in works) for name in works[0]})
    seconds = [line["seconds/round"] for line in lines]
    phases = {name: statistics.median(line[f"seconds/{name}"] for line in lines) for name in PHASES}
    scored = [line["seconds/score"] for line in lines if line["seconds/score"] > 0]
    phases["score"] = statistics.median(scored) if scored else 0.0
    plain = statistics.median(line["seconds/round"] - line["seconds/score"] for line in lines)
    times = -(-experiment.rounds // experiment.evaluation.every) + 1  # scored rounds, and the last models
    rate = lane_steps.samples / sum(seconds)
    return Report(statistics.median(seconds), seconds, phases, rate,
                  lane_steps.needed / max(1, lane_steps.computed),
                  lane_steps.computed / max(1, lane_steps.turns),
                  rate * max(flops) / sum(peaks), sum(peaks) / 1e9,
                  list(resident), list(device), experiment.rounds * plain + times * phases["score"],
                  bool(scored), *(statistics.median(line[name] for line in lines) / 1e6
                                  for name in ("bytes_down", "bytes_up")))


def _peak(device: torch.device) -> float:
    """Floating-point operations a second of a large float32 matrix product, the best of five."""
    side = MATRIX[device.type]
    left = right = torch.ones(side, side, device=device)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
    return 2 * side ** 3 / best


def _flops(prepared: Prepared) -> float:
    """Floating-point operations to train on one sample: the model forward and backward."""
    kernel = SerialKernel(prepared.setup.build().to(prepared.resources.device))
    parameters = {name: tensor.detach()[None] for name, tensor in kernel.module.named_parameters()}
    buffers = {name: tensor[None] for name, tensor in kernel.module.named_buffers()}
    x, y = prepared.resources.samples.take(torch.zeros(8, dtype=torch.int64))
    gradient = kernel.session(parameters | buffers, list(parameters),
                              lambda model, batch, lane: model(batch.x).sum())
    with FlopCounterMode(display=False) as counter:
        gradient(slice(None), x[None], y[None], {})
    operations: int = counter.get_total_flops()
    return operations / len(y)
