"""FL-bench (Tan & Wang, 2024, github.com/KarhouTam/FL-bench) on a workload of MNIST, by
its command line, in one process with one thread.

It reads MNIST's files and normalises each sample when it is loaded, as in ordinary use.
Nothing is scored.
"""

import json
import os
import pickle
import re
import shutil
from pathlib import Path

from turns import ONE_THREAD, Program
from workloads import Workload, load

# its server prints this at the beginning of a round
ROUND = re.compile(r"TRAINING EPOCH: \d+")
# more than are timed; it draws the clients of all rounds before the first
ROUNDS = 1000


def copy(checkout: Path, workload: Path, folder: Path):
    """Copy a checkout, and a workload's clients in its format, into a new folder."""
    shutil.copytree(
        checkout, folder, ignore=shutil.ignore_patterns("__pycache__", ".git")
    )
    given = load(workload)
    ids = list(range(len(given.train)))
    clients = [
        {"train": train.numpy(), "val": train[:0].numpy(), "test": test.numpy()}
        for train, test in zip(given.train, given.test, strict=True)
    ]
    separation = {"train": ids, "val": [], "test": ids, "total": len(ids)}
    partition = {"separation": separation, "data_indices": clients}
    place = folder / "data" / "mnist"
    place.mkdir()
    (place / "partition.pkl").write_bytes(pickle.dumps(partition))
    (place / "args.json").write_text(json.dumps({"split": "sample"}))
    (place / "MNIST").symlink_to(Path(os.environ["HPCFL_DATA"]).resolve() / "MNIST")


def start(python: Path, folder: Path, given: Workload) -> Program:
    """Start FedAvg in the folder of ``copy`` with an interpreter that has FL-bench's
    dependencies.
    """
    options = {
        "method": "fedavg",
        "dataset.name": "mnist",
        "model.name": "avgcnn",
        "optimizer.lr": given.lr,
        "common.join_ratio": 1,
        "common.global_epoch": ROUNDS,
        "common.local_epoch": given.epochs,
        "common.batch_size": given.batch_size,
        "common.client_side_evaluation": "false",
        "common.test.client.interval": -1,
        "common.test.client.test": "false",
        "common.verbose_gap": 1,
        "common.use_cuda": "false",
        "common.save_log": "false",
    }
    words = [f"{key}={value}" for key, value in options.items()]
    return Program(
        [python, "main.py", *words],
        ROUND,
        folder,
        {**ONE_THREAD, "PYTHONPATH": ""},
    )
