"""Models, one file each, found by the file's name (``model.name``).

A file's ``plugin`` is called as ``plugin(shape, classes, *, own keys)``. ``shape`` is
the shape of one sample, without the batch, and the keyword parameters become validated
keys of ``[model]``. It returns a plain ``nn.Module`` for ONE client, with

* ``head``: the output layer, last in registration order;
* ``features(x)``: the head's input [batch, width], and ``forward(x) =
  head(features(x))``;
* its layers as direct children in order, because "the upper p layers" counts children
  with parameters.

Parameters frozen by ``requires_grad_(False)`` are never trained and never sent. All
clients share their values, those of the initial model.

``forward`` should run under ``torch.func.vmap``, which trains clients side by side. It
should therefore have no ``.item()``, no branch on values and no ``nn.RNN``. A model
with any of these is trained for one client after the other, and a note is printed. The
same applies on a CPU to layers whose batched result is not bit-identical: batch norm,
convolutions and most activations except ReLU, tanh and GELU. A model of tokens has the
key ``vocabulary``; the default is the data set's vocabulary.

A model of sequences may have the attribute ``width`` and a method ``through_blocks(x,
mask=None)``. The method passes tokens [batch, tokens, width] through all blocks;
``mask`` is added to the scores of attention. Such a model can have a prompt
(``adapter.kind``).
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

from torch import Tensor, nn

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.experiment.sections import Model
from hpcfl.models.random import RandomLayer as RandomLayer


class Head(Protocol):
    """An output layer: an ``nn.Linear``, or a module with the same attributes."""

    in_features: int
    weight: Tensor

    def __call__(self, features: Tensor) -> Tensor: ...


class Parts(Protocol):
    """A model's ``head`` and ``features``, as this package's docstring describes them."""

    head: Head

    def features(self, x: Tensor) -> Tensor: ...


class Classifier(nn.Module):
    """A model whose child ``head`` computes logits from its features.

    Attributes:
        features: Method that returns the head's input [batch, d].
    """

    head: nn.Module
    features: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes]."""
        logits: Tensor = self.head(self.features(x))
        return logits


def parts(model: nn.Module) -> Parts:
    """Return the model itself, typed with a head and features.

    The model must have passed ``head_of``.
    """
    return cast(Parts, model)


def build(
    model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None = None
) -> nn.Module:
    """Build the module of one client for ``[model]``, freshly initialised.

    Args:
        model: The section ``[model]``.
        shape: The shape of one sample.
        classes: The number of classes.
        vocabulary: The data set's number of tokens; None if it has no tokens.

    Raises:
        UserError: The model does not fit the samples or cannot have the requested head.
    """
    options: dict[str, Any] = dict(model.options)
    if vocabulary is not None and ":" not in model.name:
        _refuse_tokens(model, vocabulary)
    if "vocabulary" in options and options["vocabulary"] is None:
        options["vocabulary"] = vocabulary
    module = _make(model.name, shape, classes, options)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model.name = '{model.name}' made a {type(module).__name__}, not an nn.Module"
        )
    if model.head == "cosine":
        head = getattr(module, "head", None)
        if not isinstance(head, nn.Linear):
            raise UserError(
                "model.head = 'cosine' needs a model whose output layer is the nn.Linear "
                f"'head'; '{model.name}' has none"
            )
        from hpcfl.models.heads import CosineHead

        module.head = CosineHead(head.in_features, head.out_features, model.head_scale)
    return module


def _refuse_tokens(model: Model, vocabulary: int) -> None:
    """Raise UserError if a built-in model does not take all ids below ``vocabulary``."""
    if "vocabulary" not in model.options:
        raise UserError(
            f"model.name = '{model.name}' does not take token ids, which integers of an npz file, "
            "lists of integers and texts are: save numbers as float32, set data.encode = "
            "'one-hot' for a column of categories, or take a model of tokens such as fasttext"
        )
    known = model.options["vocabulary"] or vocabulary
    if known < vocabulary:
        raise UserError(
            f"model.vocabulary = {known}: the data set has {vocabulary} token ids; leave the key "
            "out, or encode the texts by the model's vocabulary"
        )


def _make(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> Any:
    """Call the plugin called ``name``. Raises UserError where a user's own one fails."""
    plugin = plugins.find(__name__, "model.name", name)
    try:
        return plugin(shape, classes, **options)
    except Exception as error:
        if ":" not in name or isinstance(error, UserError):
            raise
        size = "×".join(map(str, shape))
        raise UserError(
            f"{user_code.locate(error, plugin)}model.name = '{name}' cannot be made for "
            f"samples of shape {size} and {classes} classes: {user_code.describe_error(error)}"
        ) from error
