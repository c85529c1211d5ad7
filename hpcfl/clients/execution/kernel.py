"""The interface of kernels, and the serial kernel, the reference of all others.

A ``Kernel`` runs the models of one module's kind. A ``Session`` of it computes the
gradients of some lanes, mini-batch after mini-batch. Two functions recognise errors of
torch that are limits of batching, or of a GPU's memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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
    compute_gradients,
    stack_data_term,
    train_mode,
    wrap_samples,
)
from hpcfl.experiment.sections import Form
from hpcfl.models.random import keyed, random_layers
from hpcfl.models.replaced import is_fast_channels_last

# The variable with the keys of the model's random layers, under a name that no method can
# read as ``lane.NAME``.
KEYS = "random layers"
# Samples whose gradients are in memory at once, of each lane.
PIECE = 16
# The class of a place that holds no sample, where clipped sums are taken.
NO_SAMPLE = -1
Keys = Callable[[Lanes], Tensor]

# Parts of torch's messages about limits of ``vmap``.
NAMED = (
    "vmap",
    "batching rule",
    "functorch transform",
    "got a batched tensor",
    "batchedtensor",
    "cannot access data pointer of tensor",
)
# Parts of torch's messages about code for one client that writes to a shared tensor, or
# that reads the gradient of a batched tensor.
CONSEQUENCES = (
    "doesn't match the broadcast shape",
    "does not require grad and does not have a grad_fn",
    "a hook on a tensor that doesn't require gradient",
    "stack expects each tensor to be equal size",
    "from the 'sparse",
)
# Parts of the messages of CUDA's libraries about a full GPU. Torch's own allocator raises
# a separate error.
FULL = "out of memory", "ALLOC_FAILED"


@dataclass(frozen=True)
class Work:
    """Lanes that train, and the loss that is differentiated.

    Attributes:
        tensors: their parameters and buffers, ``[L, …]`` by name.
        trained: the names of the parameters to differentiate; the others are frozen.
        loss: of ONE lane.
        variables: what the loss reads as ``lane.NAME``, ``[L, …]`` by name.
        frozen: the mode of layers of which all is frozen.
        keys: gives the keys of the random layers for the next gradients of some lanes,
            int32 [a, layers, 2]; None for a model without such layers.
        clip: the largest norm of the gradient of ONE sample. With it gradients are sums
            over the samples of a mini-batch, each clipped by itself, without places of
            the class NO_SAMPLE, and losses are sums, too. None for gradients of the
            loss of a mini-batch.

    Gradients are functions of tensors alone: of those that ``names`` lists, x, y, and
    those that ``variable_names`` lists.
    """

    tensors: Tensors
    trained: list[str]
    loss: Loss
    variables: Tensors = field(default_factory=dict)
    frozen: Frozen = "evaluation"
    keys: Keys | None = None
    clip: float | None = None

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors, those that are trained first."""
        others = [name for name in self.tensors if name not in self.trained]
        return [*self.trained, *others]

    @cached_property
    def variable_names(self) -> list[str]:
        """The names of the variables in order, with that of the keys if there are any."""
        drawn = [] if self.keys is None else [KEYS]
        return sorted([*self.variables, *drawn])


class Kernel(ABC):
    """Computation of outputs and gradients for models with the layers of ``module``.

    Attributes:
        module: one client's module, whose tensors are swapped for a lane's.
        widest: the most lanes in one call.
        dependent: the operators that were called on a CPU and give a lane bits that
            depend on the lanes beside it.
        random_layers: those of the module that draw by keys.
        form: of a convolution over lanes.
    """

    form: Form = "grouped"

    def __init__(self, module: nn.Module, widest: int):
        self.module, self.widest = module, widest
        self.dependent: set[str] = set()
        self.random_layers = random_layers(module)

    @abstractmethod
    def begin(self, work: Work) -> "Session":
        """Begin a session for some lanes. A kernel has one session at a time."""

    @abstractmethod
    def predict(
        self,
        tensors: Tensors,
        x: Tensor,
        variables: Tensors,
        function: Predict,
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

    def narrow(self, failed: int) -> None:
        """At most half of ``failed`` lanes from now on, which the GPU's memory did not
        hold.
        """
        self.widest = failed // 2


class Session(ABC):
    """Computation of the gradients of lanes, mini-batch after mini-batch.

    Gradients are taken at what the models hold at the time of the call.

    Attributes:
        samples: of how many samples a lane had gradients that took part in all calls.
        calls: how many times gradients were taken.
    """

    def __init__(self, kernel: Kernel, work: Work) -> None:
        """Put the kernel's module into training mode."""
        self.kernel, self.work = kernel, work
        self.samples = self.calls = 0
        train_mode(kernel.module, work.trained, work.frozen)

    @abstractmethod
    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        """Compute the gradients of ``a`` lanes' losses on their mini-batches.

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

    def _with_keys(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the variables with the keys of random layers; count the samples."""
        self.samples += batch.y.shape[1]
        self.calls += 1
        given = dict(variables)
        if self.work.keys is not None:
            given[KEYS] = self.work.keys(lanes)
        return given


class SerialKernel(Kernel):
    """One lane at a time through an ordinary module whose parameters are views of the
    lane's tensors, with ordinary autograd.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, widest=1)
        self._channels_last = is_fast_channels_last(module)

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Return a lane's tensors ``[1, …]`` with channels-last convolution weights,
        which are faster.
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

    def begin(self, work: Work) -> "SerialSession":
        return SerialSession(self, work, self.bind(work.tensors, work.trained))

    @torch.no_grad()
    def predict(
        self,
        tensors: Tensors,
        x: Tensor,
        variables: Tensors,
        function: Predict,
    ) -> Tensor:
        self.bind(tensors, [])
        self.module.eval()
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        return function(self.module, self.samples(x), lane)[None]

    def samples(self, x: Tensor) -> Any:
        """Return the samples ``x`` [1, batch, …] of a lane as the model takes them,
        images in the layout of its weights.
        """
        own = x[0]
        if self._channels_last and own.dim() == 4:
            own = own.contiguous(memory_format=torch.channels_last)
        return wrap_samples(self.module, own)

    def bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors``; return the parameters ``trained``,
        in that order.

        Parameters that ``tensors`` lacks stay as they are.
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


class SerialSession(Session):
    """A session of one lane, with ordinary autograd."""

    kernel: SerialKernel

    def __init__(self, kernel: SerialKernel, work: Work, leaves: list[Tensor]) -> None:
        """``leaves`` are the module's parameters that are trained."""
        super().__init__(kernel, work)
        self._leaves = leaves

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        variables = self._with_keys(lanes, batch, variables)
        own = {name: value[0] for name, value in variables.items()}
        module = self.kernel.module
        with keyed(self.kernel.random_layers, own.pop(KEYS, None)):
            lane = Lane(**own)
            samples = self.kernel.samples(batch.x)
            loss = self.work.loss(module, Batch(samples, batch.y[0]), lane)
        values = stack_data_term(loss, lane)
        parts = compute_gradients(values[0], self._leaves)
        by_name = {}
        for name, gradient in zip(self.work.trained, parts, strict=True):
            by_name[name] = gradient[None]
        return by_name, values.detach()[None]


def is_batching_limit(error: BaseException) -> bool:
    """Return whether an error is a known limit of ``torch.func.vmap``.

    The list is closed. An unknown error must end a run: training clients one after the
    other instead gives other last bits.
    """
    if type(error) not in (RuntimeError, NotImplementedError):
        return False
    words = str(error).lower()
    return any(phrase in words for phrase in NAMED + CONSEQUENCES)


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in FULL
    )
