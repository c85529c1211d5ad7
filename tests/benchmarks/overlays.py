"""CPU seconds of a round with each change of updates, as a ratio to the round without
it: ``python tests/benchmarks/overlays.py``.

Two runs in one process with one thread run their rounds in turn, one without and one
with the change. The first round of each is a warm-up. The table of medians is written
into ``results/benchmarks/overlays.md``.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pages
import workloads
from round_times import prepare_rounds

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config

WORKLOAD = "dense"
ROUNDS = 9  # after one to warm up
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


def time_round(play_round: Callable[[int], None], number: int) -> float:
    """Run a round and return its CPU seconds."""
    begun = time.process_time()
    play_round(number)
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


def measure(folder: Path, change: Sequence[str]) -> tuple[float, float]:
    """Return the median CPU seconds of a round without and with a change."""
    plain, changed = [], []
    with (
        prepare_rounds(load(folder, []), OneProcess()) as play_plain,
        prepare_rounds(load(folder, change), OneProcess()) as play_changed,
    ):
        for number in range(1, ROUNDS + 2):
            plain.append(time_round(play_plain, number))
            changed.append(time_round(play_changed, number))
    return statistics.median(plain[1:]), statistics.median(changed[1:])


def main():
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / WORKLOAD
        workloads.write(WORKLOAD, folder)
        for name, change in CHANGES.items():
            plain, changed = measure(folder, change)
            ratio = f"{changed / plain:.2f}"
            rows.append([name, ratio, f"{plain:.3f}", f"{changed:.3f}"])
            print(*rows[-1], sep="\t", flush=True)
    heads = ["change", "ratio", "seconds without", "seconds with"]
    pages.replace(PAGE, Path(__file__).name, pages.table(heads, rows))


if __name__ == "__main__":
    main()
