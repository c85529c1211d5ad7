"""Facts that server and clients know before the first round: ``Setup``, learning rates."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpcfl.clients.losses import Tensors
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Training
from hpcfl.rows import randomness
from hpcfl.rows.layout import Layout, make_row

MODEL = "model"  # purpose of the random numbers that initialise a model
INITIAL = MODEL, 0  # key of the initial model of server and clients
MILESTONE = 0.1  # factor of the learning rate at a milestone


@dataclass(frozen=True)
class Setup:
    """Facts of an experiment that methods may use.

    Attributes:
        layout: layout of one client model's parameters.
        class_counts: number of training samples of each class, float64 [clients,
            classes]. A method reads ``counts`` instead, which sample-level privacy
            refuses.
        rounds: number of rounds of the experiment.
        seed: seed of the experiment.
        build: function that returns a new model of one client, adapted to the method
            and randomly initialised. Frozen parameters have the same values in all
            models (``rows/constants.py``).
        training: training section of the experiment.
        participation: fraction of clients that take part in a round.
        build_initial: function that returns the initial model of server and clients; by
            default ``build``.
        hides_classes: whether sample-level privacy hides class counts from methods.
    """

    layout: Layout
    class_counts: Tensor
    rounds: int
    seed: int
    build: Callable[[], nn.Module]
    training: Training
    participation: float = 1.0
    build_initial: Callable[[], nn.Module] | None = None
    hides_classes: bool = False

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.class_counts.shape[0]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.class_counts.shape[1]

    @property
    def counts(self) -> Tensor:
        """Number of training samples of each class, float64 [clients, classes].

        Raises:
            UserError: Sample-level privacy is on.
        """
        return self.show_classes(self.class_counts)

    @property
    def samples(self) -> Tensor:
        """Number of training samples of each client, float64 [clients]."""
        return self.class_counts.sum(dim=1)

    def show_classes(self, counts: Tensor) -> Tensor:
        """Return a copy of class counts [n, classes] for a method, which may change it.

        Raises:
            UserError: Sample-level privacy is on, which does not cover class counts.
        """
        if self.hides_classes:
            raise UserError(
                "[privacy] unit = 'sample' does not cover class counts, which the method "
                "reads ('counts'); numbers of samples ('samples') are public. Choose a "
                "method that does not read classes, such as FedAvg, Ditto or MR-MTL"
            )
        return counts.clone()

    def template(self) -> nn.Module:
        """Return a model for its layers and shapes, without an effect on other draws."""
        with torch.random.fork_rng(devices=[]):
            return self.build()

    def initial(self, draw: int = 0) -> Tensor:
        """Return initial parameters ``[P]``.

        Args:
            draw: number of the draw. Server and clients share draw 0; each number gives
                other parameters.
        """
        build = self.build
        if draw == 0 and self.build_initial is not None:
            build = self.build_initial
        with randomness.seeded(self.seed, MODEL, draw):
            return make_row(self.layout, build())

    def normal(self, *shape: int, key: tuple[int | str, ...]) -> Tensor:
        """Draw standard normal numbers, float32 on the CPU, equal for equal keys.

        Args:
            shape: shape of the result.
            key: a purpose, optionally followed by a round.
        """
        generator = randomness.generator(self.seed, "normal", *key)
        return torch.from_numpy(generator.standard_normal(shape)).float()

    def parameters(
        self, build: Callable[[], nn.Module], *, key: tuple[int | str, ...]
    ) -> Tensors:
        """Return the initial parameters by name of a module that a server trains.

        Equal keys give equal parameters.

        Args:
            build: function that returns the module.
            key: a purpose, optionally followed by a round.
        """
        with randomness.seeded(self.seed, "parameters", *key):
            module = build()
        return {
            name: parameter.detach() for name, parameter in module.named_parameters()
        }

    def learning_rate(self, round: int) -> float:
        """Return the optimiser's learning rate in a round.

        It is ``lr`` times ``compute_rate_factor``.
        """
        return self.training.lr * compute_rate_factor(self.training, round, self.rounds)

    def plain_rate(self, round: int) -> float:
        """Return the learning rate of a method's own plain gradient steps in a round.

        It is ``plain_lr``, by default ``lr``, times ``compute_rate_factor``.
        """
        rate = self.training.plain_lr
        if rate is None:
            rate = self.training.lr
        return rate * compute_rate_factor(self.training, round, self.rounds)


def compute_rate_factor(training: Training, round: int, rounds: int) -> float:
    """Return the factor of the learning rate in a round.

    The factor is ``lr_decay^(round − 1)`` times the factors of warm-up and schedule.
    The warm-up factor is round/warmup in the rounds of the warm-up. The cosine factor
    is (1 + cos(π(round − 1)/rounds))/2 (Loshchilov & Hutter, ICLR 2017, without
    restarts). The step factor is a tenth for every earlier milestone.

    Args:
        training: training section of the experiment.
        round: number of the round, from 1.
        rounds: number of rounds of the experiment.
    """
    scale = training.lr_decay ** (round - 1)
    if round < training.warmup:
        scale *= round / training.warmup
    if training.schedule == "cosine":
        scale *= (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
    if training.schedule == "step":
        scale *= MILESTONE ** sum(
            milestone < round for milestone in training.milestones
        )
    return scale
