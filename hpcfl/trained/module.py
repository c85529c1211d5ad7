"""A client's model as a plain module of torch, whose forward is the prediction that was
scored.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hpcfl.adapters import lora, peft
from hpcfl.adapters.peft import Corrections
from hpcfl.clients.losses import Lane, Predict, Tensors
from hpcfl.models import _mixed as mixed
from hpcfl.models._replaced import restore_layers
from hpcfl.rows import constants
from hpcfl.rows.layout import Layout
from hpcfl.trained.replay import with_gradients

# the child that holds what a method's own prediction reads beside the model
PREDICTION = "prediction"


class Predicting(nn.Module):
    """A model whose forward is a method's own prediction, such as FedProto's by the
    nearest prototype.

    It has the model's children, parameters and buffers under their names, and where the
    prediction reads variables the further child ``prediction``, whose buffers they are.
    """

    def __init__(self, model: nn.Module, predict: Predict, variables: Tensors) -> None:
        super().__init__()
        if variables:
            known = nn.Module()
            for name, tensor in variables.items():
                known.register_buffer(name, tensor)
            model.add_module(PREDICTION, known)
        # the model's own dictionaries, so that what is loaded into or moved in one of
        # the two is so in both
        self._parameters = model._parameters
        self._buffers = model._buffers
        self._modules = model._modules
        # not a child, under which all names would begin with "model."
        vars(self)["model"] = model
        self.predict = predict

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of x [batch, *shape]."""
        known = self._modules.get(PREDICTION)
        variables = dict(known.named_buffers()) if known else {}
        return self.predict(vars(self)["model"], x, Lane(**variables))


@with_gradients
def module(
    build: Callable[[], nn.Module],
    parameters: Layout,
    row: Tensor,
    buffers: Layout,
    statistics: Tensor,
    predict: Predict | None = None,
    variables: Tensors | None = None,
) -> tuple[nn.Module, Corrections | None]:
    """The model of one client on the CPU, in evaluation mode; corrections of low rank are
    part of its weights, and beside it alone, if it has any.

    Args:
        build: makes one with fresh numbers, and those that are frozen.
        parameters, row: their layout, and the client's, [P].
        buffers, statistics: their layout, and the client's, [B].
        predict: how it predicts, if not by its forward.
        variables: what that reads, one client's tensors by name.
    """
    with torch.random.fork_rng(devices=[]):  # what ``build`` draws is nobody else's
        model = build()
    given = parameters.split(row[None]) | buffers.split(statistics[None])
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(given[name][0])
    model = mixed.restore(constants.whole(model))
    corrections = peft.corrections(model)
    # merged first: torch's own layers may read the weights of those inside them
    model = restore_layers(lora.merge(model))
    if predict is not None:
        known = {
            name: tensor.cpu().clone() for name, tensor in (variables or {}).items()
        }
        model = Predicting(model, predict, known)
    return model.eval(), corrections
