"""Models, one file each, found by the file's name (``model.name``).

A file's ``plugin`` is called as ``plugin(shape, classes, *, own keys)``: ``shape`` is one sample's without
the batch, and the keyword parameters become validated keys of ``[model]``. It returns a plain ``nn.Module``
for ONE client, with

* ``head``: the output layer, last in registration order;
* ``features(x)``: the head's input [batch, width], and ``forward(x) = head(features(x))``;
* its layers as direct children in order, because "the upper p layers" counts children that hold parameters.

``forward`` should run under ``torch.func.vmap``, where clients train side by side: no ``.item()``, no branch
on values, no recurrent layer of torch; with any of these they train one after the other, which a note says.
A model of tokens has the key ``vocabulary``; left out, it is the data set's.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.experiment import blame, plugins
from hpcfl.experiment.sections import Model
from hpcfl.models._heads import CosineHead


class Head(Protocol):
    """An output layer, an ``nn.Linear`` or one that stands for it."""

    in_features: int
    weight: Tensor

    def __call__(self, features: Tensor) -> Tensor: ...


class Parts(Protocol):
    """What a model is made of, as above."""

    head: Head

    def features(self, x: Tensor) -> Tensor: ...


def parts(model: nn.Module) -> Parts:
    """The model itself, its parts with their types; it has them if it passed a method's ``head_of``."""
    return cast(Parts, model)


def build(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
    """The module of one client that ``[model]`` asks for, freshly initialised. Raises UserError where
    it does not fit."""
    options: dict[str, Any] = dict(model.options)
    if "vocabulary" in options and options["vocabulary"] is None:
        options["vocabulary"] = vocabulary
    make = plugins.find(__name__, "model.name", model.name)
    module = _made(model.name, make, shape, classes, options)
    if not isinstance(module, nn.Module):
        raise UserError(f"model.name = '{model.name}' made a {type(module).__name__}, not an nn.Module")
    if model.head == "cosine":
        head = getattr(module, "head", None)
        if not isinstance(head, nn.Linear):
            raise UserError("model.head = 'cosine' needs a model whose output layer is the nn.Linear "
                            f"'head'; '{model.name}' has none")
        module.head = CosineHead(head.in_features, head.out_features, model.head_scale)
    return module


def _made(name: str, make: Callable[..., Any], shape: tuple[int, ...], classes: int,
          options: dict[str, Any]) -> Any:
    """What a model's class or function makes. Raises UserError where a user's own fails."""
    try:
        return make(shape, classes, **options)
    except Exception as error:
        place = blame.line_of(error) or blame.definition_of(make)
        if ":" not in name or isinstance(error, UserError):
            raise
        size = "×".join(map(str, shape))
        raise UserError(f"{f'{place}: ' if place else ''}model.name = '{name}' cannot be made for samples of "
                        f"shape {size} and {classes} classes: {blame.said(error)}") from error
