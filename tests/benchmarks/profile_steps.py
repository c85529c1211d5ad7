"""What a round of the methods in the benchmarks consists of: ``python
tests/benchmarks/profile_steps.py`` writes ``results/benchmarks/profile-steps.txt``.

One process with one thread trains two of W1's clients, without scoring, by one method
after the other, several times. A mini-batch's gradients are told apart from what a
method does beside them; both in parts of FedAvg's round, so that they add up to what
the table has. Data sets are looked for in $HPCFL_DATA.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rounds
import workloads

from hpcfl.clients.execution.kernel import SerialSession
from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import Prepared, prepare

OUT = Path(__file__).parents[2] / "results" / "benchmarks" / "profile-steps.txt"
REPEATS = 5
CLIENTS = slice(
    4, 6
)  # by their number of samples: neither the smallest nor the largest


class Gradients:
    """How many gradients were taken, and the seconds that they took."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def watch(self) -> None:
        """Count all those of sessions from now on."""
        compute = SerialSession.gradients

        def counted(session: SerialSession, *given: Any) -> Any:
            begun = time.perf_counter()
            found = compute(session, *given)
            self.seconds += time.perf_counter() - begun
            self.count += 1
            return found

        SerialSession.gradients = counted  # type: ignore[method-assign]


def main() -> None:
    gradients = Gradients()
    gradients.watch()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "W1"
        workloads.write("W1", folder)
        prepared = {
            method: experiment(folder, method)
            for method in dict.fromkeys(rounds.STEPS + rounds.METHODS)
        }
    sizes = prepared["fedavg"].setup.counts.sum(dim=1).numpy()
    ids = np.sort(np.argsort(sizes)[CLIENTS])
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in prepared}
    counts = {}
    for round in range(1, REPEATS + 2):
        for method, one in prepared.items():
            gradients.count, gradients.seconds = 0, 0.0
            seconds = play(one, ids, round)
            counts[method] = gradients.count
            if round > 1:  # the first warms up
                found[method].append((gradients.seconds, seconds - gradients.seconds))
    base = statistics.median(map(sum, found["fedavg"]))
    lines = [
        f"{len(ids)} clients, {int(sizes[ids].sum())} samples, batch 10, one thread, medians of "
        f"{REPEATS} rounds; FedAvg's round is 1"
    ]
    for method, parts in found.items():
        computing, beside = (
            statistics.median(part) / base for part in zip(*parts, strict=True)
        )
        lines.append(
            f"{method}: {computing + beside:.2f}: {counts[method]} gradients {computing:.2f}, "
            f"beside them {beside:.2f}"
        )
    print(*lines, sep="\n")
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def experiment(folder: Path, method: str) -> Prepared:
    settings = [
        f"partition.file={folder}/partition.h5",
        *rounds.UNSCORED,
        f"method.name={method}",
        *(rounds.OF_STEPS | rounds.OF_METHODS).get(method, []),
    ]
    return prepare(config.load(folder / "experiment.toml", settings), OneProcess())


def play(prepared: Prepared, ids: np.ndarray, round: int) -> float:
    """The seconds that the clients ``ids`` take for a round; what comes of it is
    dropped.
    """
    alone, resources = OneProcess(), prepared.resources
    message = prepared.method.send(prepared.server, prepared.audience(ids, round))
    inbox, _ = exchange.send(alone, prepared.placement, ids, message, resources.device)
    fleet = prepared.fleet(ids, round, scored=False)
    begun = time.perf_counter()
    prepared.method.update(fleet, inbox)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
