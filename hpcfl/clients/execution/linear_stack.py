"""Cross-entropy of many client models at once, with its gradients by hand.

``vmap`` and autograd spend a fixed time in Python, whatever the size of a batch, which
is longer than the arithmetic of small dense models. The functions here call the same
operators in the same order and so give the same bits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpcfl.clients.losses import HeadModel
from hpcfl.models.mlp import MLP


def cross_entropy(log_shares: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of each lane [a], and the gradient of their sum with
    respect to ``log_shares``.

    log_shares: logarithms of probabilities [a, batch, classes]. y: [a, batch].
    """
    labels = y[..., None]
    chosen = log_shares.detach().gather(2, labels).squeeze(2)
    losses = chosen.neg().sum(dim=1).div(y.shape[1])
    gradient = torch.zeros_like(log_shares)
    return losses, gradient.scatter_(2, labels, -1.0 / y.shape[1])


def find_linear_layers(module: nn.Module) -> list[str] | None:
    """Return the names of a model's linear layers in order if it consists of them with
    ReLU between them, else None.
    """
    if type(module) is MLP:
        names = [*module.hidden_layers, "head"]
    elif type(module) is HeadModel:
        names = ["head"]
    else:
        return None
    for name in names:
        layer = module.get_submodule(name)
        if type(layer) is not nn.Linear or layer.bias is None:
            return None
    return names


class LinearStack:
    """Linear layers with ReLU between them, for lanes side by side."""

    def __init__(self, layers: Sequence[str], names: Sequence[str], trained: int):
        """Begin with the names of the layers.

        Args:
            names: those of the parameters in the order of the arguments.
            trained: how many of the first ones are trained.
        """
        self._places = [
            (names.index(f"{layer}.weight"), names.index(f"{layer}.bias"))
            for layer in layers
        ]
        self._parameters, self._trained = len(names), trained
        self._lowest = min(
            (level for level, pair in enumerate(self._places) if min(pair) < trained),
            default=0,
        )

    @torch.no_grad()
    def predict(self, *given: Tensor) -> tuple[Tensor]:
        """Return logits [a, batch, classes], given the parameters and x [a, batch, …]."""
        _, logits = self._forward(given)
        return (logits,)

    @torch.no_grad()
    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the trained parameters, and then losses and data terms
        [a, 2].

        given: the parameters, x [a, batch, …], y [a, batch] and variables, which
        cross-entropy does not read.
        """
        inputs, logits = self._forward(given)
        with torch.enable_grad():
            logits.requires_grad_()
            log_shares = logits.log_softmax(dim=2)
            losses, slope = cross_entropy(log_shares, given[self._parameters + 1])
            (slope,) = torch.autograd.grad(log_shares, logits, slope)
        gradients: dict[int, Tensor] = {}
        for level in reversed(range(self._lowest, len(self._places))):
            weight, bias = self._places[level]
            if weight < self._trained:
                product = torch.bmm(inputs[level].transpose(1, 2), slope)
                gradients[weight] = product.transpose(1, 2)
            if bias < self._trained:
                gradients[bias] = slope.sum(dim=1)
            if level > self._lowest:
                slope = torch.bmm(slope, given[weight])
                slope = slope.masked_fill_(inputs[level] <= 0, 0)
        in_order = [gradients[place] for place in range(self._trained)]
        return (*in_order, torch.stack([losses, losses], dim=1))

    def _forward(self, given: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the inputs of the layers and the logits, ``[a, batch, …]``."""
        output = given[self._parameters].flatten(2)
        inputs: list[Tensor] = []
        for weight, bias in self._places:
            inputs.append(output.relu_() if inputs else output)
            product = torch.bmm(inputs[-1], given[weight].transpose(1, 2))
            output = product.add_(given[bias][:, None])
        return inputs, output
