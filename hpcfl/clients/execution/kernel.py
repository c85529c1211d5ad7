"""What training and scoring ask of a kernel, and the plain one that is the reference of
all others.

A ``Kernel`` runs the models of one module's kind; a ``Session`` of it takes steps of some
lanes, mini-batch after mini-batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hpcfl.clients.losses import (
    Batch,
    Frozen,
    Lane,
    Lanes,
    Loss,
    Predict,
    Tensors,
    convolves,
    gradients_of,
    in_two,
    train_mode,
)
from hpcfl.clients.optimizers import Optimizer
from hpcfl.models._random import keyed, random_layers

# The variable with the keys of the model's random layers, under a name that no method can
# read as ``lane.NAME``.
KEYS = "random layers"
# Of some lanes, their mini-batches and variables: see ``Session.gradients``.
Gradients = Callable[[Lanes, Batch, Mapping[str, Tensor]], tuple[Tensors, Tensor]]


class Kernel(ABC):
    """What computes with models that have the layers of ``module``.

    Attributes:
        module: one client's module, whose tensors are swapped for a lane's.
        widest: the most lanes in one call.
        dependent: the operators that were called on a CPU and give a lane bits that
            depend on the lanes beside it.
        random_layers: those of the module that draw by keys.
    """

    def __init__(self, module: nn.Module, widest: int):
        self.module, self.widest = module, widest
        self.dependent: set[str] = set()
        self.random_layers = random_layers(module)

    @abstractmethod
    def begin(self, session: "Session") -> Gradients:
        """Begin a session: what computes its gradients."""

    @abstractmethod
    def predict(
        self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict
    ) -> Tensor:
        """``function``'s output ``[L, batch, …]`` in evaluation mode.

        Args:
            tensors: the models, ``[L, …]`` by name.
            x: samples [L, batch, …].
            variables: what the function reads as ``lane.NAME``, ``[L, …]`` by name.
            function: of one client's (model, x, lane).
        """

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Models ``[L, …]`` by name, laid out in memory as the kernel wants them."""
        return tensors

    def computed_lanes(self, lanes: int, most: int) -> int:
        """How many lanes are computed for so many of a session of ``most``."""
        return lanes

    @abstractmethod
    def check(self) -> None:
        """Raise RunFailure if a recording turned out to be wrong since the last call."""

    def narrow(self, failed: int) -> None:
        """At most half of ``failed`` lanes from now on, which the GPU's memory did not
        hold.
        """
        self.widest = failed // 2


@dataclass
class Session:
    """Lanes that train: their models, their loss, the method's variables and the
    optimiser.

    Steps change the models in place; gradients are taken at what they hold at the time
    of the call. A kernel has one session at a time.

    Attributes:
        tensors: parameters and buffers, ``[L, …]`` by name.
        trained: the names of the parameters to differentiate; the others are frozen.
        loss: of ONE lane.
        frozen: the mode of layers of which all is frozen.
        variables: what the loss reads as ``lane.NAME``, ``[L, …]`` by name.
        optimizer: None where nothing but gradients is asked for.
        keys: gives the keys of the random layers for the next gradients of some lanes,
            int32 [a, layers, 2]; None for a model without such layers.
        samples: how many samples of each lane gradients were taken of, added up over
            all calls; a lane that a call leaves out has fewer.
    """

    kernel: Kernel
    tensors: Tensors
    trained: list[str]
    loss: Loss
    frozen: Frozen = "evaluation"
    variables: Tensors = field(default_factory=dict)
    optimizer: Optimizer | None = None
    keys: Callable[[Lanes], Tensor] | None = None
    samples: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        train_mode(self.kernel.module, self.trained, self.frozen)
        self._gradients = self.kernel.begin(self)

    def step(self, lanes: Lanes, batch: Batch) -> Tensor:
        """One step of the optimiser for ``a`` lanes.

        Args:
            lanes: which of them.
            batch: their mini-batches, ``x`` [a, size, …] and ``y`` [a, size].

        Returns:
            Losses and data terms [a, 2].
        """
        assert self.optimizer is not None
        variables = {name: value[lanes] for name, value in self.variables.items()}
        gradients, losses = self.gradients(lanes, batch, variables)
        self.optimizer.step(lanes, gradients)
        return losses

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        """The gradients of ``a`` lanes' losses on their mini-batches.

        Args:
            lanes: which of them.
            batch: ``x`` [a, size, …] and ``y`` [a, size].
            variables: ``[a, …]`` by name.

        Returns:
            Gradients ``[a, …]`` by name, which the next call may overwrite, and losses
            and data terms [a, 2].

        Raises:
            TypeError: A loss is not one number, or depends on nothing that is trained.
        """
        self.samples += batch.y.shape[1]
        if self.keys is not None:
            variables = {**variables, KEYS: self.keys(lanes)}
        return self._gradients(lanes, batch, variables)

    def computed_lanes(self, lanes: int) -> int:
        """How many lanes a call for so many computes."""
        return self.kernel.computed_lanes(lanes, len(next(iter(self.tensors.values()))))


class SerialKernel(Kernel):
    """One lane at a time through an ordinary module whose parameters are views of the
    lane's tensors, with ordinary autograd.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, widest=1)
        self._channels_last = convolves(module)

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

    def begin(self, session: Session) -> Gradients:
        leaves = self._bind(session.tensors, session.trained)

        def gradients(
            lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
        ) -> tuple[Tensors, Tensor]:
            own = {name: value[0] for name, value in variables.items()}
            with keyed(self.random_layers, own.pop(KEYS, None)):
                lane = Lane(**own)
                loss = session.loss(self.module, Batch(batch.x[0], batch.y[0]), lane)
            values = in_two(loss, lane)
            parts = gradients_of(values[0], leaves)
            by_name = {
                name: gradient[None]
                for name, gradient in zip(session.trained, parts, strict=True)
            }
            return by_name, values.detach()[None]

        return gradients

    def check(self) -> None:
        """Nothing is recorded, so nothing can be wrong."""

    @torch.no_grad()
    def predict(
        self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict
    ) -> Tensor:
        self._bind(tensors, [])
        self.module.eval()
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        return function(self.module, x[0], lane)[None]

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
