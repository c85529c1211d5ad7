"""The reference of all kernels: one client model at a time, an ordinary module,
ordinary autograd.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hpcfl.clients.execution.session import Session
from hpcfl.clients.losses import (
    Batch,
    Lane,
    Lanes,
    Loss,
    Predict,
    Tensors,
    differentiable,
    in_two,
)
from hpcfl.clients.modules import Frozen, convolves, train_mode
from hpcfl.clients.optimizers import Optimizer


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
        # A counter becomes a float here, as it is in a row.
        for name, _ in list(self.module.named_buffers()):
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
        variables: Tensors | None = None,
        optimizer: Optimizer | None = None,
    ) -> "SerialSession":
        """Steps on ``loss`` of a lane with ``tensors`` [1, …]; see ``Session``.

        Parameters that are not ``trained`` are frozen; ``frozen`` is the mode of layers
        of which all is frozen.
        """
        leaves = self._bind(tensors, trained)
        train_mode(self.module, trained, frozen)
        return SerialSession(
            self.module, loss, leaves, tensors, trained, variables, optimizer
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
    """Gradients of one lane's loss with respect to ``leaves``, the trained parameters
    of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        leaves: list[Tensor],
        tensors: Tensors,
        trained: list[str],
        variables: Tensors | None,
        optimizer: Optimizer | None,
    ):
        super().__init__(tensors, trained, variables, optimizer)
        self._module, self._loss, self._leaves = module, loss, leaves

    def differentiate(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        loss = self._loss(self._module, Batch(batch.x[0], batch.y[0]), lane)
        values = in_two(loss, lane)
        gradients = torch.autograd.grad(
            differentiable(values[0]), self._leaves, materialize_grads=True
        )
        by_name = {
            name: gradient[None]
            for name, gradient in zip(self.trained, gradients, strict=True)
        }
        return by_name, values.detach()[None]
