"""Arguments and results of a method's hooks: the receivers of a message, the clients of
the uploads, and the models to score.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.losses import Predict, Tensors
from hpcfl.clients.setup import Setup
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class Audience:
    """Receivers of a message: the cohort, or all clients in a scored round.

    A client's message must not depend on the other receivers; otherwise results would
    depend on the frequency of scoring. An audience therefore has no weights.

    Attributes:
        ids: The clients' numbers [n], ascending.
        setup: The setup of the run, with known facts about clients such as
            ``setup.samples[ids]`` [n].
        round: The number of the round, from 1.
    """

    ids: np.ndarray
    setup: Setup
    round: int

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def are_newcomers(self) -> bool:
        """True for newcomers, whose ids follow those of all clients."""
        return bool((self.ids >= self.setup.clients).any())


@dataclass(frozen=True)
class Cohort:
    """Clients whose uploads the server aggregates.

    Attributes:
        ids: The clients' numbers [n], ascending.
        class_counts: Numbers of training samples of each class, float64 [n, classes].
            Methods must read ``counts`` instead, which checks privacy.
        setup: The setup of the run.
        round: The number of the round, from 1.
        uniform: Whether all clients have equal weights in averages.
    """

    ids: np.ndarray
    class_counts: Tensor
    setup: Setup
    round: int
    uniform: bool = False

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def counts(self) -> Tensor:
        """Numbers of training samples of each class, float64 [n, classes].

        Raises:
            UserError: The run has sample-level privacy.
        """
        return self.setup.show_classes(self.class_counts)

    @property
    def samples(self) -> Tensor:
        """Number of training samples of each client, float64 [n]."""
        return self.class_counts.sum(dim=1)

    @property
    def share_of_clients(self) -> float:
        """Size of the cohort as a share of all clients, n/M."""
        return len(self.ids) / self.setup.clients

    @property
    def shares(self) -> Tensor:
        """Unnormalised weight of each client in an average, float64 [n]: its number of
        samples N_i, or 1 if uniform.
        """
        return torch.ones_like(self.samples) if self.uniform else self.samples

    @property
    def weights(self) -> Tensor:
        """Weights of the clients in an average, float64 [n], with sum one: N_i/ΣN, or
        1/n if uniform.
        """
        return self.shares / self.shares.sum()


@dataclass(frozen=True)
class ClientModel:
    """A model for each client: ``rows`` [n, P], or [P] if it is the same for all.

    Attributes:
        rows: The models' parameters, [n, P] or [P].
        predict: Function (model, x, lane) → logits [batch, classes]; by default
            ``model(x)``.
        variables: Inputs that ``predict`` reads as ``lane.NAME``, tensors [n, …] by
            name.
        model: Name of the model, for methods with several models that have separate
            batch-norm buffers.
    """

    rows: Tensor
    predict: Predict | None = None
    variables: Tensors | None = None
    model: str = "model"

    def is_same(self, other: "ClientModel") -> bool:
        """Return whether all attributes are identical objects; equal values are not
        enough.
        """
        return (
            self.rows is other.rows
            and self.predict is other.predict
            and self.variables is other.variables
            and self.model == other.model
        )
