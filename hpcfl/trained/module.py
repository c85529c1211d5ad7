"""A client's model as a torch module whose forward is the scored prediction.

``Predicting`` shares private dictionaries of another module, because torch has no
public way to give a second module the same tensors under the same names.
"""

import torch
from torch import Tensor, nn

from hpcfl.adapters import lora, peft
from hpcfl.adapters.peft import Corrections
from hpcfl.clients.losses import Lane, Predict, Tensors
from hpcfl.clients.resources import Resources
from hpcfl.models import mixed
from hpcfl.models.layer_replacements import restore_layers
from hpcfl.rows import constants
from hpcfl.trained.replay import with_gradients

# name of the child with the variables of a method's own prediction
PREDICTION = "prediction"


class Predicting(nn.Module):
    """A model whose forward is a method's own prediction, such as FedProto's nearest
    prototype.

    It has the model's children, parameters and buffers under the same names. Variables
    of the prediction are buffers of an additional child, ``prediction``.
    """

    def __init__(self, model: nn.Module, predict: Predict, variables: Tensors) -> None:
        super().__init__()
        if variables:
            known = nn.Module()
            for name, tensor in variables.items():
                known.register_buffer(name, tensor)
            model.add_module(PREDICTION, known)
        # shared dictionaries: loading or moving one of the two modules changes both
        self._parameters = model._parameters
        self._buffers = model._buffers
        self._modules = model._modules
        # not registered as a child, which would prefix all names with "model."
        vars(self)["model"] = model
        self.predict = predict

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes] of x [batch, *shape]."""
        known = self._modules.get(PREDICTION)
        variables = dict(known.named_buffers()) if known else {}
        return self.predict(vars(self)["model"], x, Lane(**variables))


@with_gradients
def make_module(
    resources: Resources,
    row: Tensor,
    statistics: Tensor,
    predict: Predict | None = None,
    variables: Tensors | None = None,
) -> tuple[nn.Module, Corrections | None]:
    """Return the model of one client on the CPU, in evaluation mode, and its low-rank
    corrections or None.

    The model's weights include the corrections.

    Args:
        resources: resources of a rank, including the setup that builds models.
        row: parameters of the client, [P].
        statistics: batch-norm statistics of the client, [B].
        predict: prediction of the method; None for the model's forward.
        variables: variables of the prediction, tensors of one client by name.
    """
    model = resources.setup.template()
    given = resources.setup.layout.split(row[None].cpu())
    given |= resources.buffers.split(statistics[None].cpu())
    with torch.no_grad():
        own = dict(model.named_parameters()) | constants.collect_statistics(model)
        for name, tensor in own.items():
            tensor.copy_(given[name][0])
    model = mixed.restore(constants.release(model))
    corrections = peft.find_corrections(model)
    # merged first, because torch's layers may read the weights of their children
    model = restore_layers(lora.merge(model))
    if predict is not None:
        known = {
            name: tensor.cpu().clone() for name, tensor in (variables or {}).items()
        }
        model = Predicting(model, predict, known)
    return model.eval(), corrections
