"""Contract of losses and predictions, and the module that they receive."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.func import functional_call

from hpcfl.errors import suggest
from hpcfl.rows import constants

Tensors = dict[str, Tensor]
Lanes = slice | Tensor  # neighbouring lanes, or their indices [a]
# the mode of layers of which nothing is trained
Frozen = Literal["evaluation", "training"]


def index_lanes(lanes: list[int], device: torch.device) -> Lanes:
    """Return neighbouring lanes as a slice, other lanes as indices.

    A slice gives views, which steps change in place.
    """
    if lanes[-1] - lanes[0] == len(lanes) - 1:
        return slice(lanes[0], lanes[-1] + 1)
    return torch.tensor(lanes).to(device, non_blocking=True)


@dataclass
class Batch:
    """One mini-batch of ONE client: ``x`` [batch, *shape], ``y`` [batch] class numbers.

    ``x`` is ``Features`` where these were computed before the training.
    """

    x: Any
    y: Tensor

    def split(self, parts: int) -> list["Batch"]:
        """Return a mini-batch of lanes, [a, size, …], as ``parts`` mini-batches."""
        if parts == 1:
            return [self]
        x, y = self.x.tensor_split(parts, dim=1), self.y.tensor_split(parts, dim=1)
        return [Batch(*pair) for pair in zip(x, y, strict=True)]


class Lane(SimpleNamespace):
    """The variables of ONE client, as a loss or a prediction sees them."""

    _regularisers: tuple[Tensor, ...] = ()

    def regulariser(self, term: Tensor) -> Tensor:
        """Return ``term`` for the loss, and exclude it from the recorded data loss."""
        self._regularisers = (*self._regularisers, term)
        return term

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "the lane has no variable "
            f"'{name}'{suggest(name, sorted(vars(self))) if vars(self) else ''}"
        )


Loss = Callable[[nn.Module, Batch, Any], Tensor]  # of (model, batch, lane): one number
Predict = Callable[
    [nn.Module, Any, Any], Tensor
]  # of (model, x, lane), in evaluation mode: [batch, …]


@dataclass(frozen=True)
class Features:
    """Features of samples in place of the samples, for a ``HeadModel`` alone.

    Another use of them as samples is an error, so a loss that needs the samples
    themselves cannot be computed from features by mistake.
    """

    values: Tensor


class HeadModel(nn.Module):
    """The layer ``head`` of a model and all that are registered after it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        children = list(model.named_children())
        head = [name for name, _ in children].index("head")
        for name, child in children[head:]:
            self.add_module(name, child)

    def features(self, x: Features) -> Tensor:
        """Return the features themselves."""
        if not isinstance(x, Features):
            raise TypeError("a model without its lower layers takes features alone")
        return x.values

    def forward(self, x: Features) -> Tensor:
        """Return logits [batch, classes]."""
        logits: Tensor = self.get_submodule("head")(self.features(x))
        return logits


def wrap_samples(model: nn.Module, x: Tensor) -> Any:
    """Return ``x`` as the model takes it."""
    return Features(x) if isinstance(model, HeadModel) else x


def default_prediction(model: nn.Module, x: Any, lane: Any) -> Tensor:
    """Return the model's logits [batch, classes]. Methods without a prediction of their
    own use this one.
    """
    logits: Tensor = model(x)
    return logits


@dataclass(frozen=True)
class Fit:
    """The cross-entropy of a prediction, as a loss: equal for the same prediction."""

    predict: Predict

    def __call__(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        return functional.cross_entropy(self.predict(model, batch.x, lane), batch.y)


# Its gradient is known, so kernels compute it by fewer operations with the same bits.
CROSS_ENTROPY = Fit(default_prediction)


def require_scalar(loss: Tensor) -> Tensor:
    """Return the loss itself. Raises TypeError if it is not a tensor with one
    number.
    """
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


def stack_data_term(loss: Tensor, lane: Lane) -> Tensor:
    """Return the loss and its data term, [2]. Only the loss has a gradient.

    Raises TypeError if the loss is not one number.
    """
    data = require_scalar(loss).detach()
    for term in lane._regularisers:
        data = data - term.detach()
    return torch.stack([loss, data])


def add_terms(losses: Tensor, terms: Tensor) -> Tensor:
    """Return losses and data terms [a, 2] of objectives that have further ``terms`` [a]."""
    return torch.stack([losses[:, 0] + terms, losses[:, 1]], dim=1)


def compute_gradients(
    loss: Tensor, leaves: Sequence[Tensor], slope: Tensor | None = None
) -> list[Tensor]:
    """Return the gradients of a loss, with zeros for a parameter that it does not
    depend on. ``slope`` is the gradient of the loss with respect to a tensor in its
    place.

    Raises TypeError if it does not depend on any of the ``leaves``, which are trained.
    """
    if not loss.requires_grad:
        raise TypeError(
            "the loss does not depend on the parameters that are trained; compute it from the "
            "model's outputs"
        )
    if slope is not None:
        # torch would import sympy, for a second, to compare two tensors' shapes.
        loss = (loss * slope).sum()
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def function_key(function: Loss | Predict) -> Hashable:
    """Return a key of a method's loss or prediction that is the same in every round.

    No other object can take its id while something under this key keeps it alive.
    """
    return getattr(function, "__func__", function), id(
        getattr(function, "__self__", None)
    )


def describe_function(function: Loss | Predict) -> str:
    """Return the name of a user's function for error messages, with its method."""
    name = getattr(function, "__qualname__", repr(function))
    owner = getattr(function, "__self__", None)
    method = getattr(owner, "name", None)
    return f"'{name}' of the method '{method}'" if method else f"'{name}'"


class Program(nn.Module):
    """A function of (model, …) as a module, in which ``functional_call`` can swap the
    model's tensors.
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


def train_mode(module: nn.Module, trained: list[str], frozen: Frozen) -> None:
    """Set training mode, and the mode ``frozen`` for modules without trained parameters.

    Their batch norm is frozen too in "evaluation" mode, and takes each batch's own
    statistics in "training". Where all parameters, or its statistics, are constants it is
    always frozen.
    """
    module.train()
    fixed = constants.collect(module)
    moving = trained
    if frozen == "training":
        moving = [name for name, _ in module.named_parameters()]
    frozen_names = constants.find_constants(module).frozen
    for name, part in module.named_modules():
        parameters = {f"{name}.{leaf}" for leaf, _ in part.named_parameters()}
        parameters |= {one for one in frozen_names if one.startswith(f"{name}.")}
        still = bool(name and parameters) and not parameters & set(moving)
        if still or f"{name}.running_mean" in fixed:
            part.eval()


def expand_constants(module: nn.Module, lanes: int) -> Tensors:
    """Return the constants of a module on a CPU as tensors ``[lanes, …]``, views of one
    set of values.

    As single tensors they would make one product of all lanes, whose last bits may
    depend on how many there are. On a GPU, where results may depend on that, they are
    best left in the module: there is nothing to give. So are tables of which rows are
    looked up, which torch would copy for every lane.
    """
    tables = _tables(module)
    return {
        name: value.detach().expand(lanes, *value.shape)
        for name, value in constants.collect(module).items()
        if not value.is_cuda and id(value) not in tables
    }


def _tables(module: nn.Module) -> set[int]:
    """Return the ids of the tensors that only embeddings have."""
    of_embeddings: set[int] = set()
    of_others: set[int] = set()
    for layer in module.modules():
        kind = of_embeddings if isinstance(layer, nn.Embedding) else of_others
        kind |= {id(value) for value in layer.parameters(recurse=False)}
        kind |= {id(value) for value in layer.buffers(recurse=False)}
    return of_embeddings - of_others


def evaluate_at(
    model: nn.Module,
    row: Tensor,
    function: Callable[[nn.Module], Tensor],
    buffers: Tensor | None = None,
) -> Tensor:
    """Return ``function(model)`` at the parameters ``row`` [P] in evaluation mode. A
    loss uses it to evaluate another model.

    For example ``evaluate_at(model, lane.teacher, lambda teacher: teacher.features(batch.x))``.

    Raises ValueError where a row has another length.

    Args:
        buffers: batch-norm statistics [B] that belong to ``row``, such as a row of
            ``fleet.buffers(NAME)``; without them those of ``model``.
    """
    if isinstance(model, HeadModel):
        raise TypeError(
            "another model has features of its own, which are not at hand here"
        )
    named = _from_row(model.named_parameters(), row)
    if buffers is not None:
        named |= _from_row(constants.collect_statistics(model).items(), buffers)
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        result: Tensor = functional_call(Program(model, function), swapped, ())
        return result
    finally:
        for part, mode in modes.items():
            part.training = mode


def _from_row(tensors: Iterable[tuple[str, Tensor]], row: Tensor) -> Tensors:
    """Split a row into views by name, in the order and shapes of tensors. Raises
    ValueError if they do not fit.
    """
    like = dict(tensors)
    sizes = [tensor.numel() for tensor in like.values()]
    if sum(sizes) != len(row):
        raise ValueError(
            f"a row of a model has {len(row)} numbers; expected {sum(sizes)}"
        )
    named = {}
    for (name, tensor), part in zip(like.items(), row.split(sizes), strict=True):
        named[name] = part.view(tensor.shape)
        if tensor.dim() == 4 and not tensor.is_contiguous():
            # Strides of other weights would make every later layer slower.
            named[name] = named[name].clone(memory_format=torch.channels_last)
    return named
