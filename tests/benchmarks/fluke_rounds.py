"""fluke (Polato, 2024, github.com/makgyver/fluke) on a workload, by its package
``fluke-fl``: ``python fluke_rounds.py FOLDER`` with an interpreter that has the
package. It prints "round N" at the end of each round until it is killed.

The experiment is FedAvg with all clients, models weighted by samples, plain SGD, and no
scoring.
"""

import argparse
from pathlib import Path

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from workloads import Workload, load

NO_END = 100_000  # rounds, more than are timed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    torch.set_num_threads(1)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    federation = make(load(parser.parse_args().folder))
    federation.set_callbacks(Marks())
    federation.run(n_rounds=NO_END, eligible_perc=1.0, finalize=False)


class Marks(FederationObserver):
    """Print a line at the end of each round."""

    def end_round(self, round: int):
        print(f"round {round}", flush=True)


def make(given: Workload) -> FedAVG:
    """Return the federation of a workload's clients."""
    classes = int(given.y.max()) + 1
    loaders = [
        FastDataLoader(
            given.x[index],
            given.y[index],
            num_labels=classes,
            batch_size=given.batch_size,
            shuffle=True,
        )
        for index in given.train
    ]
    data = DummyDataContainer(loaders, [None] * len(loaders), None, classes)
    client = {
        "batch_size": given.batch_size,
        "local_epochs": given.epochs,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": given.lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
    }
    options = {"client": client, "server": {"weighted": True}, "model": given.model()}
    splitter = DataSplitter(data, distribution="iid")
    return FedAVG(len(loaders), splitter, DDict(options))


if __name__ == "__main__":
    main()
