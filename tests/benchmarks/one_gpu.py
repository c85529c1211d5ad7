"""The rows of one GPU: rounds against an expert's loop, early and steady, and what a
run promises there.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import workloads

sys.path.append(str(Path(__file__).parents[1]))  # where on_gpu.py is

# timed rounds of hpcfl, of which the second half are steady, and of the loop by hand
ROUNDS = {"CIFAR-20": (30, 3), "CIFAR-100": (30, 3), "ResNet": (6, 1)}


def rounds(bench, name: str) -> dict[str, float]:
    """Seconds of a steady round of hpcfl, of its first round, and of one by hand.

    In the first round steps run one by one and are made into graphs.
    """
    ours, by_hand = ROUNDS[name]
    found = bench.hpcfl(name, ours, f"evaluation.every={workloads.NEVER}")
    return {
        "hpcfl": statistics.median(found["rounds"][ours // 2 :]),
        "first": found["warm_up"],
        "by hand": statistics.median(bench.by_hand(name, by_hand)),
    }


def methods(bench, name: str) -> dict[str, float]:
    """How far each method's final state is from the CPU's, as a share of a tensor's
    largest number.
    """
    import on_gpu

    found: dict[str, float] = {}
    for case in on_gpu.PLAYED:
        with tempfile.TemporaryDirectory() as folder:
            found[case[0]] = max(
                found.get(case[0], 0.0), on_gpu.on_both(case, Path(folder))
            )
    return found


def repeated(bench, name: str) -> dict[str, float]:
    """How many digests a run has that is played twice, and once more without graphs."""
    import on_gpu

    found = {}
    for model in ("mlp", "cnn", "tiny:normalised"):
        with tempfile.TemporaryDirectory() as folder:
            sections = {**on_gpu.made_up(model, Path(folder)), "rounds": 5}
            found[model] = len(
                on_gpu.digests({"name": "fedavg"}, sections, Path(folder))
            )
    return found


def memory(bench, name: str) -> dict[str, float]:
    """The most memory that lanes of a model need, as a share of what the rule says."""
    import on_gpu

    found = {}
    for model, clients in on_gpu.SIDE_BY_SIDE.items():
        with tempfile.TemporaryDirectory() as folder:
            found[model] = on_gpu.share_of_rule(
                "fedavg",
                [[4, 4, 0, 0]] * clients,
                on_gpu.made_up(model, Path(folder)),
                4,
                on_gpu.OF_CUBLAS,
            )
    return found


ROWS = {
    **{name: (rounds, name) for name in ROUNDS},
    "GPU-methods": (methods, ""),
    "GPU-repeated": (repeated, ""),
    "GPU-memory": (memory, ""),
}
