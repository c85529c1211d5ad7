"""Arguments and results of a method's hooks: the receivers of a message, the senders of
uploads, and the models that clients use.
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
    """Receivers of a message: ``ids`` [n] ascending, the cohort, or all clients in a
    scored round.

    A client's message must not depend on the other receivers: otherwise results would
    depend on the frequency of scoring. So an audience has no weights. ``setup`` has
    known facts about clients, such as their numbers of samples, ``setup.samples[ids]``
    [n].

    Attributes:
        round: The round, from 1.
    """

    ids: np.ndarray
    setup: Setup
    round: int

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def are_newcomers(self) -> bool:
        """True for a message to newcomers, whose ids follow those of the others."""
        return bool((self.ids >= self.setup.clients).any())


@dataclass(frozen=True)
class Cohort:
    """Clients whose messages arrived.

    Attributes:
        ids: their numbers [n], ascending.
        class_counts: training samples of each class, float64 [n, classes]. A method
            reads ``counts``, which may be refused.
        uniform: True if all clients have equal weights in averages.
        round: As in ``Audience``.
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
        """Training samples of each class, float64 [n, classes]. Raises UserError with
        sample-level privacy.
        """
        return self.setup.show_classes(self.class_counts)

    @property
    def samples(self) -> Tensor:
        """Training samples of each client, float64 [n]."""
        return self.class_counts.sum(dim=1)

    @property
    def share_of_clients(self) -> float:
        """Share of all clients that the cohort has, n/M."""
        return len(self.ids) / self.setup.clients

    @property
    def shares(self) -> Tensor:
        """Relative weight of each client in an average, float64 [n]: its samples N_i,
        or 1 if uniform.
        """
        return torch.ones(len(self.ids)).double() if self.uniform else self.samples

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
        predict: (model, x, lane) → logits [batch, classes]; default ``model(x)``.
        variables: The inputs of ``predict`` as ``lane.NAME``, tensors [n, …] by name.
        model: The name of the model, for methods with several models that have
            batch-norm buffers of their own.
    """

    rows: Tensor
    predict: Predict | None = None
    variables: Tensors | None = None
    model: str = "model"

    def is_same(self, other: "ClientModel") -> bool:
        """Return whether both have the very same objects; equal values do not count."""
        return (
            self.rows is other.rows
            and self.predict is other.predict
            and self.variables is other.variables
            and self.model == other.model
        )
