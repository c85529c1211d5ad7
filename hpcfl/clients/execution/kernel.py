"""The interface of kernels, and the serial kernel as the reference for all others.

* A ``Kernel`` runs models with the layers of one module.
* A ``Session`` of a kernel computes the gradients of some lanes, one mini-batch after
  another.
* ``is_batching_limit`` and ``is_full`` recognise torch's errors about the limits of
  batching and about a full GPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hpcfl.clients.losses import (
    Batch,
    FrozenMode,
    Lane,
    Lanes,
    Loss,
    Predict,
    Tensors,
    compute_gradients,
    set_modes,
    stack_data_term,
    wrap_samples,
)
from hpcfl.experiment.sections import Form
from hpcfl.models.layer_replacements import is_fast_channels_last
from hpcfl.models.random import keyed, list_random_layers

# Name of the variable with the keys of the model's random layers. The space prevents a
# method from reading it as ``lane.NAME``.
KEYS = "random layers"
# Number of per-sample gradients of a lane that are in memory at once.
PIECE = 16
# Class of padding in mini-batches with per-sample clipping.
NO_SAMPLE = -1
Keys = Callable[[Lanes], Tensor]

# Parts of torch's messages about limits of ``vmap``.
LIMITS = (
    "vmap",
    "batching rule",
    "functorch transform",
    "got a batched tensor",
    "batchedtensor",
    "cannot access data pointer of tensor",
)
# Parts of torch's messages about a client's code that writes to a shared tensor or
# reads the gradient of a batched tensor.
CONSEQUENCES = (
    "doesn't match the broadcast shape",
    "does not require grad and does not have a grad_fn",
    "a hook on a tensor that doesn't require gradient",
    "stack expects each tensor to be equal size",
    "from the 'sparse",
)
# Parts of the messages of CUDA's libraries about a full GPU. Torch's own allocator has
# a separate error class.
FULL = "out of memory", "ALLOC_FAILED"


@dataclass(frozen=True)
class Work:
    """Tensors of the lanes to train, and the loss to differentiate.

    Gradients are a function of tensors only: the tensors in ``names``, x, y, and the
    tensors in ``variable_names``.

    Attributes:
        tensors: parameters and buffers of the lanes, ``[L, …]`` by name.
        trained: names of the parameters to differentiate; other parameters are frozen.
        loss: loss of ONE lane.
        variables: tensors that the loss reads as ``lane.NAME``, ``[L, …]`` by name.
        frozen_mode: mode of the layers without trained parameters.
        keys: function that returns the keys of the random layers for the next gradients
            of some lanes, int32 [a, layers, 2]; None for a model without such layers.
        clip: largest norm of a sample's gradient. With a clip, gradients are sums of
            individually clipped gradients over the samples of a mini-batch except those
            of the class NO_SAMPLE, and losses are sums, too. None for gradients of the
            mini-batch loss.
    """

    tensors: Tensors
    trained: list[str]
    loss: Loss
    variables: Tensors = field(default_factory=dict)
    frozen_mode: FrozenMode = "evaluation"
    keys: Keys | None = None
    clip: float | None = None

    @cached_property
    def names(self) -> list[str]:
        """The names of the tensors, trained parameters first."""
        others = [name for name in self.tensors if name not in self.trained]
        return [*self.trained, *others]

    @cached_property
    def variable_names(self) -> list[str]:
        """The sorted names of the variables, with the keys of random layers if present."""
        drawn = [] if self.keys is None else [KEYS]
        return sorted([*self.variables, *drawn])


class Kernel(ABC):
    """Computation of outputs and gradients for models with the layers of ``module``.

    Attributes:
        module: module of one client, whose tensors are replaced by a lane's tensors.
        widest: maximum number of lanes in one call.
        dependent: names of the operators called on a CPU whose bits for a lane depend
            on other lanes.
        random_layers: layers of the module with keyed random draws.
        form: form of a convolution over lanes.
    """

    form: Form = "grouped"

    def __init__(self, module: nn.Module, widest: int):
        self.module, self.widest = module, widest
        self.dependent: set[str] = set()
        self.random_layers = list_random_layers(module)

    @abstractmethod
    def begin(self, work: Work) -> "Session":
        """Begin a session for a chunk. A kernel has one session at a time."""

    @abstractmethod
    def predict(
        self,
        tensors: Tensors,
        x: Tensor,
        variables: Tensors,
        function: Predict,
    ) -> Tensor:
        """Return the output of ``function`` in evaluation mode, ``[a, batch, …]``.

        Args:
            tensors: parameters and buffers of the models, ``[a, …]`` by name.
            x: samples [a, batch, …].
            variables: tensors that the function reads as ``lane.NAME``, ``[a, …]`` by
                name.
            function: function of one client's (model, x, lane).
        """

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Return models ``[L, …]`` by name in the memory layout of the kernel."""
        return tensors

    def attempt(self, clients: list[int]) -> Iterator["Attempt"]:
        """Yield attempts to compute chunks of clients, until every chunk has succeeded.

        A chunk has at most ``widest`` clients. After a failure the kernel is narrowed
        and the chunk's clients are attempted again.

        Args:
            clients: positions of the clients, in the order of computation.
        """
        while clients:
            attempt = Attempt(clients[: self.widest])
            yield attempt
            if attempt.failed:
                # Outside the block, whose error keeps the chunk's tensors in memory.
                self.narrow(len(attempt.chunk))
            else:
                clients = clients[len(attempt.chunk) :]

    def narrow(self, failed: int) -> None:
        """Limit the kernel to half of ``failed``, the size of a chunk that did not fit."""
        self.widest = failed // 2


class Session(ABC):
    """Computation of the gradients of lanes, one mini-batch after another.

    Gradients are taken at the values of the models at the time of the call.

    Attributes:
        sample_count: number of samples of one lane in all calls so far.
        calls: number of calls of ``compute_gradients`` so far.
    """

    def __init__(self, kernel: Kernel, work: Work) -> None:
        """Set the kernel's module to training mode.

        Args:
            kernel: kernel of the session.
            work: lanes and loss.
        """
        self.kernel, self.work = kernel, work
        self.sample_count = self.calls = 0
        set_modes(kernel.module, work.trained, work.frozen_mode)

    @abstractmethod
    def compute_gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        """Compute the gradients of ``a`` lanes' losses on their mini-batches.

        Args:
            lanes: these lanes of the chunk.
            batch: mini-batches, ``x`` [a, size, …] and ``y`` [a, size].
            variables: variables of these lanes, ``[a, …]`` by name.

        Returns:
            Gradients ``[a, …]`` by name, which the next call may overwrite, and losses
            and data terms [a, 2].

        Raises:
            TypeError: A loss is not one number, or does not depend on a trained
                parameter.
        """

    def _begin_call(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Count a call, and return the variables with the keys of random layers."""
        self.sample_count += batch.y.shape[1]
        self.calls += 1
        given = dict(variables)
        if self.work.keys is not None:
            given[KEYS] = self.work.keys(lanes)
        return given


class Attempt:
    """A block that computes a chunk of clients side by side.

    The block ends without an exception, as a failure, if a GPU was full and the chunk
    has several clients.

    Attributes:
        chunk: positions of the clients.
        failed: whether the block has failed.
    """

    def __init__(self, chunk: list[int]) -> None:
        self.chunk, self.failed = chunk, False

    def __enter__(self) -> list[int]:
        return self.chunk

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        several = len(self.chunk) > 1
        self.failed = several and isinstance(error, RuntimeError) and is_full(error)
        return self.failed


class SerialKernel(Kernel):
    """Kernel for one lane at a time, with ordinary autograd.

    The parameters of its module are views of the lane's tensors.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, widest=1)
        self._channels_last = is_fast_channels_last(module)

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Return a lane's tensors ``[1, …]``, with channels-last weights if faster."""
        if not self._channels_last:
            return tensors
        # With one input channel, `contiguous` returns the tensor with its old strides;
        # a clone has channels-last strides.
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
        return function(self.module, self.prepare_samples(x), lane)[None]

    def prepare_samples(self, x: Tensor) -> Any:
        """Return the samples ``x`` [1, batch, …] of a lane as inputs of the model.

        Images have the memory layout of the weights.
        """
        own = x[0]
        if self._channels_last and own.dim() == 4:
            own = own.contiguous(memory_format=torch.channels_last)
        return wrap_samples(self.module, own)

    def bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors`` and return the trained parameters.

        Parameters without an entry in ``tensors`` do not change.

        Args:
            tensors: parameters and buffers, ``[L, …]`` by name.
            trained: names of the trained parameters, in the order of the result.
        """
        parameters = dict(self.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
            if name in tensors:
                parameter.data = tensors[name][0]
        # An integer counter becomes a float, as in a row. Tied buffers stay tied.
        values: dict[int, Tensor] = {}
        for name, buffer in list(self.module.named_buffers(remove_duplicate=False)):
            owner, _, leaf = name.rpartition(".")
            if name in tensors:
                values[id(buffer)] = tensors[name][0]
            if id(buffer) in values:
                setattr(self.module.get_submodule(owner), leaf, values[id(buffer)])
        return [parameters[name] for name in trained]


class SerialSession(Session):
    """Session for one lane, with ordinary autograd."""

    kernel: SerialKernel

    def __init__(self, kernel: SerialKernel, work: Work, leaves: list[Tensor]) -> None:
        """Begin a session.

        Args:
            kernel: kernel of the session.
            work: lane and loss.
            leaves: trained parameters of the module.
        """
        super().__init__(kernel, work)
        self._leaves = leaves

    def compute_gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        variables = self._begin_call(lanes, batch, variables)
        own = {name: value[0] for name, value in variables.items()}
        module = self.kernel.module
        with keyed(self.kernel.random_layers, own.pop(KEYS, None)):
            lane = Lane(**own)
            samples = self.kernel.prepare_samples(batch.x)
            loss = self.work.loss(module, Batch(samples, batch.y[0]), lane)
        values = stack_data_term(loss, lane)
        parts = compute_gradients(values[0], self._leaves)
        by_name = {}
        for name, gradient in zip(self.work.trained, parts, strict=True):
            by_name[name] = gradient[None]
        return by_name, values.detach()[None]


def is_batching_limit(error: BaseException) -> bool:
    """Return whether an error is a known limit of ``torch.func.vmap``.

    The list of known errors is closed. An unknown error ends the run, because training
    one client at a time instead would change the last bits.
    """
    if type(error) not in (RuntimeError, NotImplementedError):
        return False
    words = str(error).lower()
    return any(phrase in words for phrase in LIMITS + CONSEQUENCES)


def is_full(error: BaseException) -> bool:
    """Return whether an error reports a full GPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in FULL
    )
