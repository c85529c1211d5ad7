"""PFLlib (Zhang et al., JMLR 2025, github.com/TsingZ0/PFLlib) on a workload, by its
command line.

It runs from a copy of a checkout's folder ``system``, in one process with one thread.
Only its round 0 is scored, which is not counted. Its loader leaves out an incomplete
last mini-batch, so a workload should have only complete mini-batches.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from turns import ONE_THREAD, Program
from workloads import Workload, load

# PFLlib derives the size of the CNN's first layer from the name
DATA = "MNIST-of-the-benchmark"
# Lines with the seconds of a round in the output of its servers, some of them only
# numbers.
ROUND = re.compile(r"^-{25}.*?\s[0-9.]+(e-?[0-9]+)?\s*$")
NO_END = 100_000  # rounds, more than are timed


@dataclass(frozen=True)
class Method:
    """The same method in both programs, with options for the same work per round.

    warm_up: number of first rounds, which differ from later ones.
    """

    name: str
    hpcfl: tuple[str, ...] = ()
    pfllib: tuple[str, ...] = ()
    warm_up: int = 1


# All common methods except FedPHP, whose server does not print the end of a round. The
# methods with the largest earlier ratios come first, in case a race is cut short.
METHODS = {
    "fedcp": Method("FedCP", (), ("-lam", "5")),
    "gpfl": Method("GPFL", (), ("-lam", "0.01", "-mu", "0.1")),
    "moon": Method("MOON", (), ("-mu", "5", "-tau", "0.5")),
    "apfl": Method("APFL", (), ("-al", "0.5")),
    "scaffold": Method("SCAFFOLD"),
    # in round 2 clients train their first weights
    "fedala": Method("FedALA", ("method.most_epochs=1",), warm_up=2),
    "fedavg": Method("FedAvg"),
    "ditto": Method("Ditto", ("method.personal_epochs=1",), ("-mu", "1")),
    "per-fedavg": Method("PerAvg"),
    "pfedme": Method("pFedMe", ("method.inner_steps=5",), ("-lam", "15", "-bt", "1")),
    "lg-fedavg": Method("LG-FedAvg"),
    "fedbabu": Method("FedBABU"),
    "fedlc": Method("FedLC"),
    "feddbe": Method("FedDBE", (), ("-klw", "50", "-mo", "0.1")),
    "fedproto": Method("FedProto", (), ("-lam", "1")),
    "fedprox": Method("FedProx", (), ("-mu", "0.01")),
    "fedrep": Method("FedRep", ("method.head_epochs=1",)),
    "fedfomo": Method("FedFomo", ("method.received=5",), ("-M", "5")),
    "fedas": Method("FedAS"),
    "fedrod": Method("FedROD"),
    "fedcac": Method("FedCAC", (), ("-tau", "0.5", "-bt", "100")),
    "fedamp": Method("FedAMP"),
    "apple": Method("APPLE"),
    "fedgh": Method("FedGH", ("method.server_epochs=1",)),
    "fml": Method("FML", (), ("-al", "0.5", "-bt", "0.5")),
    "fedpac": Method("FedPAC"),
    "feddyn": Method("FedDyn", (), ("-al", "0.01")),
    "fedper": Method("FedPer"),
    "fedbn": Method("FedBN"),
    "local": Method("Local"),
}


def copy(checkout: Path, workload: Path, folder: Path):
    """Write a copy of PFLlib's ``system`` and a workload's data in its format into a
    new folder.
    """
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


def start(python: Path, folder: Path, given: Workload, method: Method) -> Program:
    """Start a method in the folder of ``copy`` with an interpreter that has PFLlib's
    dependencies.
    """
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
        NO_END,
        "-eg",
        NO_END,
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
    return Program(
        [python, "main.py", *words],
        ROUND,
        folder / "system",
        {**ONE_THREAD, "PYTHONPATH": ""},
    )
