"""Facts that the server and the clients know before the first round."""

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

MODEL = "model"  # the purpose of the random numbers that a model is drawn with
INITIAL = MODEL, 0  # the key of those that server and clients begin with
MILESTONE = 0.1  # what a milestone leaves of a learning rate


@dataclass(frozen=True)
class Setup:
    """The facts of an experiment that methods may use.

    Attributes:
        layout: of the parameters of one client's model.
        class_counts: training samples of each class, float64 [clients, classes]. A
            method reads ``counts``, which may be refused.
        build: makes the model of one client, adapted to the method and freshly
            initialised; what it freezes has the same values in all
            (``rows/constants.py``).
        participation: the fraction of clients that take part in a round.
        build_initial: makes the model that server and clients begin with, if that is
            not just another one of ``build``.
        hides_classes: whether methods may not read class counts, because of
            sample-level privacy.
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
        return self.class_counts.shape[0]

    @property
    def classes(self) -> int:
        return self.class_counts.shape[1]

    @property
    def counts(self) -> Tensor:
        """Training samples of each class, float64 [clients, classes]. Raises UserError
        with sample-level privacy.
        """
        return self.show_classes(self.class_counts)

    @property
    def samples(self) -> Tensor:
        """Training samples of each client, float64 [clients]."""
        return self.class_counts.sum(dim=1)

    def show_classes(self, counts: Tensor) -> Tensor:
        """Return class counts [n, classes] for a method. Raises UserError with
        sample-level privacy, which does not cover them.
        """
        if self.hides_classes:
            raise UserError(
                "[privacy] unit = 'sample' does not cover class counts, which the method "
                "reads ('counts'); numbers of samples ('samples') are public. Take a "
                "method that does not read classes, such as FedAvg, Ditto or MR-MTL"
            )
        return counts

    def initial(self, draw: int = 0) -> Tensor:
        """Return initial parameters ``[P]``. Server and clients share draw 0; other
        draws differ from it.
        """
        build = self.build
        if draw == 0 and self.build_initial is not None:
            build = self.build_initial
        with randomness.seeded(self.seed, MODEL, draw):
            return make_row(self.layout, build())

    def normal(self, *shape: int, key: tuple[int | str, ...]) -> Tensor:
        """Draw standard normal numbers of this shape, float32 on the CPU. Equal keys
        give equal numbers.

        Args:
            key: a purpose, then perhaps a round.
        """
        generator = randomness.generator(self.seed, "normal", *key)
        return torch.from_numpy(generator.standard_normal(shape)).float()

    def parameters(
        self, build: Callable[[], nn.Module], *, key: tuple[int | str, ...]
    ) -> Tensors:
        """Return the first parameters by name of a module that a server trains. Equal
        keys give equal parameters.

        Args:
            build: makes the module.
            key: a purpose, then perhaps a round.
        """
        with randomness.seeded(self.seed, "parameters", *key):
            module = build()
        return {
            name: parameter.detach() for name, parameter in module.named_parameters()
        }

    def learning_rate(self, round: int) -> float:
        """Return the optimiser's learning rate in a round: ``lr`` times
        ``rate_factor``.
        """
        return self.training.lr * rate_factor(self.training, round, self.rounds)

    def plain_rate(self, round: int) -> float:
        """Return the learning rate of a method's own plain steps in a round. It is
        ``plain_lr``, or else ``lr``, times ``rate_factor``.
        """
        rate = (
            self.training.lr
            if self.training.plain_lr is None
            else self.training.plain_lr
        )
        return rate * rate_factor(self.training, round, self.rounds)


def rate_factor(training: Training, round: int, rounds: int) -> float:
    """Return the factor of learning rates in a round; ``round`` counts from 1.

    The factor is ``lr_decay^(round − 1)`` times the factors of the warm-up and the
    schedule. The warm-up factor is round/warmup in its rounds. The cosine factor is (1
    + cos(π(round − 1)/rounds))/2 (Loshchilov & Hutter, ICLR 2017, without restarts).
    The step factor is a tenth for every earlier milestone.
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
