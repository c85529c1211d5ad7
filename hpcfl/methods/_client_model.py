"""A client's model: its parameters and its prediction function."""

from dataclasses import dataclass

from torch import Tensor

from hpcfl.clients.losses import Predict, Tensors


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

    def same(self, other: "ClientModel") -> bool:
        """Return whether both have the very same objects; equal values do not count."""
        return all(
            mine is theirs
            for mine, theirs in zip(
                vars(self).values(), vars(other).values(), strict=True
            )
        )
