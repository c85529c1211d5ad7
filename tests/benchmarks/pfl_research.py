"""pfl-research (Granqvist et al., NeurIPS 2024, github.com/apple/pfl-research) on a
workload, by its package ``pfl``: ``python pfl_research.py FOLDER --rounds N`` with an
interpreter that has the package. It prints the seconds of each round as JSON.

The experiment is FedAvg as in pfl-research's benchmark of CIFAR-10: users drawn
uniformly, each with one weight, plain SGD, and no scoring. Under torchrun each process
has a share of the users.
"""

import argparse
import json
import os
import time
import types
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from workloads import ROOT_OPTIONS, Workload, load


def main():
    parser = argparse.ArgumentParser(description=__doc__, parents=[ROOT_OPTIONS])
    parser.add_argument("--cohort", type=int, required=True, help="users a round")
    parser.add_argument("--device", default="cpu", help="where models are trained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PFL_PYTORCH_DEVICE"] = options.device  # folder of the package's models
    clock = Clock()
    play(load(options.folder), options.rounds + 1, options.cohort, clock)
    if distributed.global_rank == 0:
        print(json.dumps(clock.rounds[1:]))  # the first one is a warm-up


class Clock(TrainingProcessCallback):
    """Seconds of each round."""

    def __init__(self):
        self.rounds: list[float] = []
        self._begun = 0.0

    def on_train_begin(self, *, model) -> Metrics:
        self._begun = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        ended = time.perf_counter()
        self.rounds.append(ended - self._begun)
        self._begun = ended
        return False, Metrics()


def play(given: Workload, rounds: int, cohort: int, clock: Clock):
    device = pytorch_ops.get_default_device()
    x, y = given.x.to(device), given.y.to(device)
    users = [[x[index], y[index]] for index in given.train]
    sampler = get_user_sampler("random", range(len(users)))
    module = given.model()
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset.from_slices(users, sampler),
            val_data=None,
            postprocessors=[WeightByUser()],
        ),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=given.lr,
            local_num_epochs=given.epochs,
            local_batch_size=given.batch_size,
        ),
        callbacks=[clock],
    )


def loss(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, eval: bool = False
) -> torch.Tensor:
    module.train(not eval)
    return functional.cross_entropy(module(x), y)


def metrics(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, eval: bool = True
) -> dict[str, Any]:
    return {}


if __name__ == "__main__":
    main()
