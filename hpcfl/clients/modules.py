"""What all kernels do with a module: swap its tensors, set its modes, look at its
parts.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor, nn
from torch.func import functional_call

from hpcfl.clients.losses import Tensors
from hpcfl.rows import constants

Frozen = Literal[
    "evaluation", "training"
]  # the mode of layers of which nothing is trained


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
    """Training mode, but ``frozen`` for modules of whose parameters none is trained.

    Their batch norm is frozen too in "evaluation" mode, and takes each batch's own
    statistics in "training". Where all parameters are constants it is always frozen.
    """
    module.train()
    moving = trained
    if frozen == "training":
        moving = [name for name, _ in module.named_parameters()]
    for name, part in module.named_modules():
        parameters = {f"{name}.{leaf}" for leaf, _ in part.named_parameters()}
        if name and parameters and not parameters & set(moving):
            part.eval()


def shared(module: nn.Module, lanes: int) -> Tensors:
    """The constants of a module on a CPU as tensors ``[lanes, …]``, views of its one
    set of values.

    As single tensors they would make one product of all lanes, whose last bits may
    depend on how many there are. On a GPU, where results may depend on that, they are
    best left in the module: there is nothing to give.
    """
    return {
        name: value.detach().expand(lanes, *value.shape)
        for name, value in constants.of(module).items()
        if not value.is_cuda
    }


def at(
    model: nn.Module,
    row: Tensor,
    function: Callable[[nn.Module], Tensor],
    buffers: Tensor | None = None,
) -> Tensor:
    """``function(model)`` at the parameters ``row`` [P] in evaluation mode: another
    model inside a loss.

    For example ``at(model, lane.teacher, lambda teacher: teacher.features(batch.x))``.

    buffers: batch-norm statistics [B] that belong to ``row``, such as a row of
        ``fleet.buffers(NAME)``; without them those of ``model``.

    Raises ValueError where a row has another length.
    """
    if "features" in vars(model):
        raise TypeError(
            "another model has features of its own, which are not at hand here"
        )
    named = _from_row(model.named_parameters(), row)
    if buffers is not None:
        named |= _from_row(model.named_buffers(), buffers)
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
    """Views of a row by name, in the order and shapes of tensors. Raises ValueError if
    they do not fit.
    """
    like = dict(tensors)
    sizes = [tensor.numel() for tensor in like.values()]
    if sum(sizes) != len(row):
        raise ValueError(
            f"a row of a model has {len(row)} numbers; expected {sum(sizes)}"
        )
    return {
        name: part.view(like[name].shape)
        for name, part in zip(like, row.split(sizes), strict=True)
    }


def on_features(module: nn.Module) -> nn.Module:
    """The same module, from now on with features for samples: ``features(x)`` is ``x``."""
    vars(module)["features"] = lambda x: x
    return module


def convolves(module: nn.Module) -> bool:
    """Whether a model has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
