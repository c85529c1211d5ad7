"""A client's model: parameters, and how a prediction is made with them."""

from dataclasses import dataclass

from torch import Tensor

from hpcfl.clients.losses import Predict, Tensors


@dataclass(frozen=True)
class ClientModel:
    """A model for each client: ``rows`` [n, P], or [P] if it is the same for all.

    Attributes:
        predict: (model, x, lane) → logits [batch, classes]; default ``model(x)``.
        variables: what it reads as ``lane.NAME``, tensors [n, …] by name.
        model: which of a client's models it is, where a method keeps several with
            batch-norm buffers of their own.
    """

    rows: Tensor
    predict: Predict | None = None
    variables: Tensors | None = None
    model: str = "model"

    def same(self, other: "ClientModel") -> bool:
        """Whether both are one model: the very same objects, not only equal ones."""
        return all(
            mine is theirs
            for mine, theirs in zip(
                vars(self).values(), vars(other).values(), strict=True
            )
        )
