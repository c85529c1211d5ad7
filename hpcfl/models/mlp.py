"""A multilayer perceptron; by default DiversiFed's model for Fashion-MNIST (784-64-10,
50,890 parameters).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torch.nn.functional import relu

from hpcfl.errors import UserError
from hpcfl.models import Classifier

MOST_LAYERS, MOST_PARAMETERS = 1_000, 1_000_000_000  # of one client's model, 4 GB


class MLP(Classifier):
    """Linear layers with ReLU between them, on the flattened sample.

    Without hidden layers it is a linear classifier.

    Raises:
        UserError: There are too many layers or parameters.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        hidden: Annotated[
            Sequence[PositiveInt], Field(description="widths of the hidden layers")
        ] = (64,),
    ):
        super().__init__()
        widths = [math.prod(shape), *hidden]
        parameters = sum(
            (inputs + 1) * outputs for inputs, outputs in pairwise([*widths, classes])
        )
        if len(hidden) > MOST_LAYERS or parameters > MOST_PARAMETERS:
            raise UserError(
                f"model.hidden: {len(hidden):,} layers with {parameters:,} parameters in all; "
                f"at most {MOST_LAYERS:,} and {MOST_PARAMETERS:,} are allowed"
            )
        self.hidden_layers = [f"hidden{position}" for position in range(1, len(widths))]
        for name, inputs, outputs in zip(
            self.hidden_layers, widths, widths[1:], strict=False
        ):
            self.add_module(name, nn.Linear(inputs, outputs))
        self.head = nn.Linear(widths[-1], classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input [batch, last width]."""
        x = x.flatten(1)
        for name in self.hidden_layers:
            x = relu(self.get_submodule(name)(x))
        return x


plugin = MLP
