"""What a loss and a prediction get, and what they must give back."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.experiment.plugins import nearest

Tensors = dict[str, Tensor]
Lanes = slice | Tensor  # neighbouring lanes, or their indices [a]


def selection(lanes: list[int], device: torch.device) -> Lanes:
    """Neighbouring lanes as a slice, so that steps can change views in place; others as
    indices.
    """
    if lanes[-1] - lanes[0] == len(lanes) - 1:
        return slice(lanes[0], lanes[-1] + 1)
    return torch.tensor(lanes).to(device, non_blocking=True)


@dataclass
class Batch:
    """One mini-batch of ONE client: ``x`` [batch, *shape], ``y`` [batch] class numbers."""

    x: Tensor
    y: Tensor


class Lane(SimpleNamespace):
    """The variables of ONE client, as a loss or a prediction sees them."""

    _regularisers: tuple[Tensor, ...] = ()

    def regulariser(self, term: Tensor) -> Tensor:
        """``term`` itself, for the sum that the loss is, noted as no part of the data
        loss.
        """
        self._regularisers = (*self._regularisers, term)
        return term

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "the lane has no variable "
            f"'{name}'{nearest(name, sorted(vars(self))) if vars(self) else ''}"
        )


Loss = Callable[[nn.Module, Batch, Any], Tensor]  # of (model, batch, lane): one number
Predict = Callable[
    [nn.Module, Tensor, Any], Tensor
]  # of (model, x, lane), in evaluation mode: [batch, …]


@dataclass(frozen=True)
class Fit:
    """The cross-entropy of a prediction, as a loss: equal for the same prediction, so
    that what was recorded of it is found again.
    """

    predict: Predict

    def __call__(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        return functional.cross_entropy(self.predict(model, batch.x, lane), batch.y)


def one_number(loss: Tensor) -> Tensor:
    """The loss itself. Raises TypeError if it is not a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.dim():
        got = (
            f"has shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"is a {type(loss).__name__}"
        )
        raise TypeError(
            f"the loss of a mini-batch {got}; expected a tensor with one number, "
            "such as the mean"
        )
    return loss


def in_two(loss: Tensor, lane: Lane) -> Tensor:
    """The loss and its data term alone, [2], of which only the first has a gradient.

    Raises TypeError if the loss is not one number.
    """
    data = one_number(loss).detach()
    for term in lane._regularisers:
        data = data - term.detach()
    return torch.stack([loss, data])


def regularised(losses: Tensor, terms: Tensor) -> Tensor:
    """Losses and data terms [a, 2] of objectives that have further ``terms`` [a]."""
    return torch.stack([losses[:, 0] + terms, losses[:, 1]], dim=1)


def differentiable(loss: Tensor) -> Tensor:
    """The loss itself. Raises TypeError if it does not depend on any parameter that is
    trained.
    """
    if not loss.requires_grad:
        raise TypeError(
            "the loss does not depend on the parameters that are trained; compute it from the "
            "model's outputs"
        )
    return loss


def identity(function: Loss | Predict) -> Hashable:
    """A key that is the same for a method's loss or prediction in every round.

    No other object can take its id, because the recording under this key keeps it
    alive.
    """
    return getattr(function, "__func__", function), id(
        getattr(function, "__self__", None)
    )


def in_words(function: Loss | Predict) -> str:
    """What an error calls a user's function, with the method that it belongs to."""
    name = getattr(function, "__qualname__", repr(function))
    owner = getattr(function, "__self__", None)
    method = getattr(owner, "name", None)
    return f"'{name}' of the method '{method}'" if method else f"'{name}'"
