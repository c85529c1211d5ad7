"""The reference of all kernels: one client model at a time, an ordinary module,
ordinary autograd.
"""

import torch
from torch import Tensor, nn

from hpcfl.fleet.losses import (
    Batch,
    Lane,
    Lanes,
    Loss,
    Predict,
    Tensors,
    differentiable,
    in_two,
)
from hpcfl.fleet.modules import Frozen, convolves, train_mode
from hpcfl.fleet.session import Session


class SerialKernel:
    """One lane at a time through an ordinary module whose parameters are views of the
    lane's tensors.
    """

    widest = 1
    dependent: frozenset[str] = frozenset()  # no lane is beside another

    def __init__(self, module: nn.Module):
        self.module = module
        self._channels_last = convolves(module)

    def check(self) -> None:
        """Nothing is recorded, so nothing can be wrong."""

    def settle(self, kind: str, tensors: Tensors) -> Tensors:
        """Tensors that stay for a whole training, as they are: each session binds the
        module to its own.
        """
        return tensors

    def lay_out(self, tensors: Tensors) -> Tensors:
        """A lane's tensors ``[1, …]``, the weights of convolutions channels-last, which
        are faster so.
        """
        if not self._channels_last:
            return tensors
        # For one input channel `contiguous` would see nothing to do and leave other
        # strides than a clone.
        return {
            name: tensor[0].clone(memory_format=torch.channels_last)[None]
            if tensor.dim() == 5
            else tensor
            for name, tensor in tensors.items()
        }

    def _bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors``; returns the parameters
        ``trained``, in that order.

        What ``tensors`` lacks, such as a body that has run already, stays as it is.
        """
        parameters = dict(self.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
            if name in tensors:
                parameter.data = tensors[name][0]
        for name, _ in list(
            self.module.named_buffers()
        ):  # a counter becomes a float here, as it is in a row
            owner, _, leaf = name.rpartition(".")
            if name in tensors:
                setattr(self.module.get_submodule(owner), leaf, tensors[name][0])
        return [parameters[name] for name in trained]

    def session(
        self,
        tensors: Tensors,
        trained: list[str],
        loss: Loss,
        frozen: Frozen = "evaluation",
    ) -> "SerialSession":
        """The gradients of ``loss`` as a function of mini-batches, at ``tensors`` [1,
        …].

        Steps change ``tensors`` in place; gradients are taken at what they hold at the
        time of the call.

        trained: the names of the parameters to differentiate; the others are frozen.
        frozen: the mode of layers of which all is frozen.
        """
        leaves = self._bind(tensors, trained)
        train_mode(self.module, trained, frozen)
        return SerialSession(
            self.module, tensors, loss, dict(zip(trained, leaves, strict=True))
        )

    @torch.no_grad()
    def predict(
        self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict
    ) -> Tensor:
        """``function``'s output ``[1, batch, …]`` in evaluation mode."""
        self._bind(tensors, [])
        self.module.eval()
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        return function(self.module, x[0], lane)[None]


class SerialSession(Session):
    """Gradients of one lane's loss with respect to ``leaves``, parameters of the module
    by name.
    """

    def __init__(
        self, module: nn.Module, tensors: Tensors, loss: Loss, leaves: Tensors
    ):
        self.module, self.tensors, self.loss, self.leaves = (
            module,
            tensors,
            loss,
            leaves,
        )

    def computed(self, lanes: int) -> int:
        return lanes

    def __call__(
        self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors
    ) -> tuple[Tensors, Tensor]:
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        values = in_two(self.loss(self.module, Batch(x[0], y[0]), lane), lane)
        leaves = list(self.leaves.values())
        gradients = torch.autograd.grad(
            differentiable(values[0]), leaves, materialize_grads=True
        )
        return {
            name: g[None] for name, g in zip(self.leaves, gradients, strict=True)
        }, values.detach()[None]
