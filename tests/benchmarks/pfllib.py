"""PFLlib (Zhang et al., JMLR 2025, github.com/TsingZ0/PFLlib) on a workload, by its own
command line.

It runs from a copy of a checkout's folder ``system``, in one process with torch's
default threads, as its users start it. Nothing is scored but its round 0, which is not
counted; round 1 is not either, because FedALA learns its first weights there.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from workloads import load

# PFLlib knows by the name what the CNN's first layer has to be
DATA = "MNIST-of-the-benchmark"
# How its servers print a round's seconds, APPLE's without words.
ROUND = re.compile(r"-{25}.*?\s([0-9.]+(?:e-?[0-9]+)?)")


@dataclass(frozen=True)
class Method:
    """The same method in both, with options that make the same work of a round."""

    name: str
    hpcfl: tuple[str, ...] = ()
    pfllib: tuple[str, ...] = ()


METHODS = {
    "fedavg": Method("FedAvg"),
    "fedprox": Method("FedProx", (), ("-mu", "0.01")),
    "fedrep": Method("FedRep", ("method.head_epochs=1",)),
    "fedala": Method("FedALA", ("method.most_epochs=1",)),
    "ditto": Method("Ditto", ("method.personal_epochs=1",), ("-mu", "1")),
    "per-fedavg": Method("PerAvg"),
    "pfedme": Method("pFedMe", ("method.inner_steps=5",), ("-lam", "15", "-bt", "1")),
    "apple": Method("APPLE"),
}


def copy(checkout: Path, workload: Path, folder: Path) -> None:
    """PFLlib's ``system`` and a workload's data in its own format, in a new folder."""
    shutil.copytree(
        checkout / "system",
        folder / "system",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    given = load(workload)
    for kind, parts in (("train", given.train), ("test", given.test)):
        place = folder / "dataset" / DATA / kind
        place.mkdir(parents=True)
        for client, index in enumerate(parts):
            samples = {"x": given.x[index].numpy(), "y": given.y[index].numpy()}
            np.savez_compressed(
                place / f"{client}.npz", data=np.array(samples, dtype=object)
            )


def seconds(folder: Path, workload: Path, method: Method) -> list[float]:
    """Of one round of a method."""
    given = load(workload)
    words = [
        "-data",
        DATA,
        "-m",
        "CNN",
        "-algo",
        method.name,
        "-dev",
        "cpu",
        "-gr",
        2,
        "-eg",
        1000,
        "-t",
        1,
        "-nc",
        len(given.train),
        "-lbs",
        given.batch_size,
        "-ls",
        given.epochs,
        "-lr",
        given.lr,
        "-ncl",
        int(given.y.max()) + 1,
        *method.pfllib,
    ]
    done = subprocess.run(
        [sys.executable, "main.py", *map(str, words)],
        cwd=folder / "system",
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    if done.returncode:
        raise RuntimeError(
            f"PFLlib's {method.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    lines = [line.strip() for line in done.stdout.splitlines()]
    rounds = [float(found[1]) for line in lines if (found := ROUND.fullmatch(line))]
    if len(rounds) != 3:
        raise RuntimeError(
            f"PFLlib's {method.name} printed the seconds of {len(rounds)} rounds, not of 3"
        )
    return rounds[2:]
