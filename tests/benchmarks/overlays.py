"""CPU seconds of a round with each change of updates, as a ratio to the round without
it: ``python tests/benchmarks/overlays.py [--rounds N] [--only NAME …]``.

Two runs in one process with one thread run their rounds in turn, one without and one
with the change. The first round of each is a warm-up. The table of medians is written
into ``results/benchmarks/overlays.md`` if all changes are measured.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pages
import workloads
from round_times import make_federation

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation import preflight
from hpcfl.simulation.prepare import prepare_together
from hpcfl.simulation.signals import StopRequest

WORKLOAD = "dense"
PAGE = pages.RESULTS / "overlays.md"
CLIENT = ["privacy.unit='client'", "privacy.clip=1.0", "privacy.noise=1.0"]
SAMPLE = ["privacy.unit='sample'", "privacy.clip=1.0", "privacy.noise=1.0"]


def use_rule(name: str, *keys: str) -> list[str]:
    """Return the keys of an aggregation rule."""
    return [f"aggregation.rule='{name}'", *(f"aggregation.{key}" for key in keys)]


def compress(kind: str, *keys: str) -> list[str]:
    """Return the keys of a compression."""
    return [f"compression.kind='{kind}'", *(f"compression.{key}" for key in keys)]


CHANGES = {
    "clip and noise": CLIENT,
    "adaptive clip": [*CLIENT, "privacy.adaptive_clip=true"],
    "noise on each client": [*CLIENT, "privacy.local=true"],
    "sample-level privacy": SAMPLE,
    "secure sums": ["aggregation.secure=true", "aggregation.clip=1.0"],
    "top-k, 1 %": compress("top-k", "share=0.01"),
    "random-k, 1 %": compress("random-k", "share=0.01"),
    "QSGD, 4 bits": compress("qsgd", "levels=7"),
    "sign": compress("sign"),
    "norm-bound": use_rule("norm-bound", "bound=1.0"),
    "median": use_rule("median"),
    "trimmed-mean": use_rule("trimmed-mean"),
    "krum": use_rule("krum", "f=20"),
    "multi-krum": use_rule("multi-krum", "f=20"),
    "bulyan": use_rule("bulyan", "f=20"),
    "geometric-median": use_rule("geometric-median"),
    "centered-clip": use_rule("centered-clip", "radius=1.0"),
    "median after nnm": use_rule("median", "mixing='nnm'", "f=20"),
}


class Player:
    """A run whose rounds are started one by one in a scratch folder."""

    def __init__(self, experiment: config.Config, stack: ExitStack) -> None:
        communicator = OneProcess()
        prepared = prepare_together(experiment, communicator)
        prepared = preflight.run(prepared, communicator)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        self._request = stack.enter_context(StopRequest(lambda: communicator.abort(1)))
        self._federation = make_federation(prepared, communicator, folder)

    def time_round(self, number: int) -> float:
        """Run a round and return its CPU seconds."""
        begun = time.process_time()
        self._federation.play_round(number, self._request)
        return time.process_time() - begun


def load(folder: Path, change: Sequence[str]) -> config.Config:
    """Return the workload with a change, given as overrides."""
    overrides = [
        f"partition.file={folder / 'partition.h5'}",
        f"evaluation.every={workloads.NEVER}",
        "method.weights='uniform'",
        *change,
    ]
    return config.load(folder / "experiment.toml", overrides)


def measure(folder: Path, change: Sequence[str], rounds: int) -> tuple[float, float]:
    """Return the median CPU seconds of a round without and with a change."""
    plain, changed = [], []
    with ExitStack() as stack:
        without = Player(load(folder, []), stack)
        with_change = Player(load(folder, change), stack)
        for number in range(1, rounds + 2):
            plain.append(without.time_round(number))
            changed.append(with_change.time_round(number))
    return statistics.median(plain[1:]), statistics.median(changed[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / WORKLOAD
        workloads.write(WORKLOAD, folder)
        for name in options.only:
            plain, changed = measure(folder, CHANGES[name], options.rounds)
            ratio = f"{changed / plain:.2f}"
            rows.append([name, ratio, f"{plain:.3f}", f"{changed:.3f}"])
            print(*rows[-1], sep="\t", flush=True)
    if options.only == list(CHANGES):
        heads = ["change", "ratio", "seconds without", "seconds with"]
        pages.replace(PAGE, Path(__file__).name, pages.table(heads, rows))


if __name__ == "__main__":
    main()
