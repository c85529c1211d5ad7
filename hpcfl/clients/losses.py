"""Interface of losses and predictions, and the models and lanes that they receive.

``Batch`` and ``Lane`` are the arguments of a loss, ``HeadModel`` and ``Features`` their
counterparts for training heads on features. ``Fit`` is cross-entropy. ``evaluate_at``
evaluates another model within a loss.
"""

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
from hpcfl.rows.declared import describe_form

Tensors = dict[str, Tensor]
Lanes = slice | Tensor  # some lanes: consecutive ones, or their numbers [a]
# Mode of the layers without trained parameters.
FrozenMode = Literal["evaluation", "training"]


def index_lanes(lanes: list[int], device: torch.device) -> Lanes:
    """Return consecutive lanes as a slice, other lanes as numbers on the device.

    A slice gives views, which steps change in place.

    Args:
        lanes: lane numbers, ascending.
        device: device of the result.
    """
    if lanes[-1] - lanes[0] == len(lanes) - 1:
        return slice(lanes[0], lanes[-1] + 1)
    return torch.tensor(lanes).to(device, non_blocking=True)


@dataclass
class Batch:
    """One mini-batch of ONE client: ``x`` [batch, *shape], ``y`` [batch] class numbers.

    ``x`` is ``Features`` if the features were computed before the training.
    """

    x: Any
    y: Tensor

    def split(self, parts: int) -> list["Batch"]:
        """Split the mini-batches of lanes, [a, size, …], into ``parts`` mini-batches."""
        if parts == 1:
            return [self]
        x, y = self.x.tensor_split(parts, dim=1), self.y.tensor_split(parts, dim=1)
        return [Batch(*pair) for pair in zip(x, y, strict=True)]


class Lane(SimpleNamespace):
    """The variables of ONE lane, as attributes for a loss or a prediction."""

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
    """Precomputed features that replace samples, for a ``HeadModel`` only.

    Any other use raises an error. A loss that needs the samples themselves is therefore
    never computed from features by mistake.
    """

    values: Tensor


class HeadModel(nn.Module):
    """The layer ``head`` of a model and all layers registered after it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        children = list(model.named_children())
        head = [name for name, _ in children].index("head")
        for name, child in children[head:]:
            self.add_module(name, child)

    def features(self, x: Features) -> Tensor:
        """Return the precomputed features. Raises TypeError for other inputs."""
        if not isinstance(x, Features):
            raise TypeError("a model without its lower layers accepts only Features")
        return x.values

    def forward(self, x: Features) -> Tensor:
        """Return logits [batch, classes]."""
        logits: Tensor = self.get_submodule("head")(self.features(x))
        return logits


def wrap_samples(model: nn.Module, x: Tensor) -> Any:
    """Return ``x`` as an input of the model: ``Features`` for a ``HeadModel``."""
    return Features(x) if isinstance(model, HeadModel) else x


def default_prediction(model: nn.Module, x: Any, lane: Any) -> Tensor:
    """Return the model's logits [batch, classes]; the default prediction of methods."""
    logits: Tensor = model(x)
    return logits


@dataclass(frozen=True)
class Fit:
    """Cross-entropy of a prediction as a loss. Two are equal if their predictions are."""

    predict: Predict

    def __call__(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        return functional.cross_entropy(self.predict(model, batch.x, lane), batch.y)


# Kernels have a closed form of its gradient, with fewer operations and the same bits.
CROSS_ENTROPY = Fit(default_prediction)


def require_scalar(loss: Tensor) -> Tensor:
    """Return the loss. Raises TypeError if it is not a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.dim():
        raise TypeError(
            f"the loss of a mini-batch is {describe_form(loss)}; expected a tensor with one "
            "number, such as the mean"
        )
    return loss


def stack_data_term(loss: Tensor, lane: Lane) -> Tensor:
    """Return the loss and its data term, [2]. Only the loss has a gradient.

    Args:
        loss: loss of one lane, a scalar.
        lane: lane of the loss, which holds its regularisation terms.

    Raises:
        TypeError: The loss is not one number.
    """
    data = require_scalar(loss).detach()
    for term in lane._regularisers:
        data = data - term.detach()
    return torch.stack([loss, data])


def add_terms(losses: Tensor, terms: Tensor) -> Tensor:
    """Add ``terms`` [a] to the losses in ``losses`` [a, 2], but not to the data terms."""
    return torch.stack([losses[:, 0] + terms, losses[:, 1]], dim=1)


def compute_gradients(
    loss: Tensor, leaves: Sequence[Tensor], slope: Tensor | None = None
) -> list[Tensor]:
    """Return the gradients of a loss, zero for parameters that it does not depend on.

    Args:
        loss: loss to differentiate.
        leaves: trained parameters.
        slope: if given, ``loss`` is an intermediate tensor and ``slope`` the gradient
            of the loss with respect to it.

    Raises:
        TypeError: The loss does not depend on any of the ``leaves``.
    """
    if not loss.requires_grad:
        raise TypeError(
            "the loss does not depend on the parameters that are trained; compute it from the "
            "model's outputs"
        )
    if slope is not None:
        # With grad_outputs torch imports sympy to compare shapes, which takes a second.
        loss = (loss * slope).sum()
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def identify_function(function: Loss | Predict) -> Hashable:
    """Return a key of a method's loss or prediction that is equal in every round.

    The key contains the id of the method object. The id stays unique while a cache
    entry under this key keeps the object alive.
    """
    return getattr(function, "__func__", function), id(
        getattr(function, "__self__", None)
    )


def describe_function(function: Loss | Predict) -> str:
    """Return the name of a user's function and its method for error messages."""
    name = getattr(function, "__qualname__", repr(function))
    owner = getattr(function, "__self__", None)
    method = getattr(owner, "name", None)
    return f"'{name}' of the method '{method}'" if method else f"'{name}'"


class Program(nn.Module):
    """A function of (model, …) as a module.

    ``functional_call`` can replace the model's tensors in it.
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


def set_modes(module: nn.Module, trained: list[str], frozen_mode: FrozenMode) -> None:
    """Put a module into training mode, and its frozen layers into ``frozen_mode``.

    Frozen layers have no trained parameters. In "evaluation" mode their batch norm uses
    its running statistics, in "training" mode the statistics of each mini-batch. Layers
    with only constant parameters or with constant statistics are always in evaluation
    mode.

    Args:
        module: module to change.
        trained: names of the trained parameters.
        frozen_mode: mode of the layers without trained parameters.
    """
    module.train()
    fixed = constants.collect(module)
    in_training = set(trained)
    if frozen_mode == "training":
        in_training = {name for name, _ in module.named_parameters()}
    frozen_names = constants.find_constants(module).frozen
    for name, layer in module.named_modules():
        parameters = {f"{name}.{leaf}" for leaf, _ in layer.named_parameters()}
        parameters |= {one for one in frozen_names if one.startswith(f"{name}.")}
        evaluates = bool(name and parameters) and not parameters & in_training
        if evaluates or f"{name}.running_mean" in fixed:
            layer.eval()


def expand_constants(module: nn.Module, lane_count: int) -> Tensors:
    """Return a module's constants on a CPU as tensors ``[lane_count, …]``.

    They are views of one set of values.

    A constant without the dimension of lanes would take part in one product for all
    lanes, whose last bits may depend on the number of lanes. Two kinds of constants
    remain in the module and are left out: constants on a GPU, where results may depend
    on the number of lanes, and tables of embeddings, which torch would copy for every
    lane.
    """
    tables = _find_tables(module)
    return {
        name: value.detach().expand(lane_count, *value.shape)
        for name, value in constants.collect(module).items()
        if not value.is_cuda and id(value) not in tables
    }


def _find_tables(module: nn.Module) -> set[int]:
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
    """Return ``function(model)`` at the parameters ``row`` [P], in evaluation mode.

    A loss uses it to evaluate another model, for example ``evaluate_at(model,
    lane.teacher, lambda teacher: teacher.features(batch.x))``.

    Args:
        model: module that receives the parameters.
        row: parameters [P] in the order of the module.
        function: function of the model.
        buffers: batch-norm statistics [B] that belong to ``row``, such as a row of
            ``fleet.buffers(NAME)``; by default the statistics of ``model``.

    Raises:
        TypeError: The model is a ``HeadModel``, for which only features of the trained
            model exist.
        ValueError: ``row`` or ``buffers`` has another length.
    """
    if isinstance(model, HeadModel):
        raise TypeError(
            "evaluate_at needs the samples, but only precomputed features are available here"
        )
    named = _split_row(model.named_parameters(), row)
    if buffers is not None:
        named |= _split_row(constants.collect_statistics(model).items(), buffers)
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        result: Tensor = functional_call(Program(model, function), swapped, ())
        return result
    finally:
        for part, mode in modes.items():
            part.training = mode


def _split_row(tensors: Iterable[tuple[str, Tensor]], row: Tensor) -> Tensors:
    """Split a row into views by name, in the order and shapes of ``tensors``.

    Raises:
        ValueError: The lengths differ.
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
            # In a channels-last model, contiguous weights slow down every later layer.
            named[name] = named[name].clone(memory_format=torch.channels_last)
    return named
