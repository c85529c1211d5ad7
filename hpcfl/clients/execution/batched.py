"""Kernel for many client models in one call: one client's loss, mapped over lanes.

``BatchedKernel`` uses ``torch.func.vmap``. ``LinearStack`` computes the gradients of
cross-entropy by hand for models of linear layers with ReLU. ``vmap`` and autograd have
a fixed Python overhead per batch, which exceeds the arithmetic of small dense models.
``LinearStack`` calls the same operators in the same order, so its bits are the same.
For the gradient of ``log_softmax`` it calls autograd's ATen operator, because torch has
no public function for it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.clients.execution.kernel import KEYS, Kernel, Session, Work
from hpcfl.clients.execution.lane_independence import Function, SameBits
from hpcfl.clients.losses import (
    CROSS_ENTROPY,
    Batch,
    HeadModel,
    Lane,
    Lanes,
    Predict,
    Program,
    Tensors,
    compute_gradients,
    default_prediction,
    expand_constants,
    identify_function,
    stack_data_term,
    wrap_samples,
)
from hpcfl.experiment.sections import Form
from hpcfl.models.layer_replacements import batching_clients
from hpcfl.models.mlp import MLP
from hpcfl.models.random import keyed, list_random_layers
from hpcfl.rows import mixing

# Number of inputs or outputs of a layer. With torch 2.13 on AMD EPYC both products have
# the same bits from 12 on.
SMALL = 16


def differentiate_cross_entropy(log_shares: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each lane's mean cross-entropy [a], and the gradient of ``log_shares``.

    The gradient is the derivative of the sum over lanes.

    Args:
        log_shares: logarithms of probabilities, [a, batch, classes].
        y: labels, [a, batch].
    """
    labels = y[..., None]
    chosen = log_shares.detach().gather(2, labels).squeeze(2)
    losses = chosen.neg().sum(dim=1).div(y.shape[1])
    gradient = torch.zeros_like(log_shares)
    return losses, gradient.scatter_(2, labels, -1.0 / y.shape[1])


def compute_weight_gradient(inputs: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient of a linear layer's weights, [a, outputs, inputs].

    The gradient of a large layer has the memory layout of its weights, which makes the
    update three times faster. For a layer smaller than ``SMALL``, MKL's kernels on AMD
    processors round the two products differently, so the product is the same as in
    autograd.

    Args:
        inputs: inputs of the layer, [a, batch, inputs].
        slope: gradient with respect to its outputs, [a, batch, outputs].
    """
    if min(inputs.shape[2], slope.shape[2]) >= SMALL:
        return torch.bmm(slope.transpose(1, 2), inputs)
    return torch.bmm(inputs.transpose(1, 2), slope).transpose(1, 2)


def find_linear_layers(module: nn.Module) -> list[str]:
    """Return the names of a model's linear layers in order.

    The result is empty if the model has layers other than linear ones with ReLU between
    them.
    """
    if type(module) is MLP:
        names = [*module.hidden_layers, "head"]
    elif type(module) is HeadModel:
        names = ["head"]
    else:
        return []
    for name in names:
        layer = module.get_submodule(name)
        if type(layer) is not nn.Linear or layer.bias is None:
            return []
    return names


class LinearStack:
    """Linear layers with ReLU between them, for lanes side by side."""

    def __init__(self, layers: Sequence[str], names: Sequence[str], trained: int):
        """Find the arguments that are weights and biases.

        Args:
            layers: names of the layers in order.
            names: names of the parameters in the order of the arguments.
            trained: number of trained parameters, which come first in ``names``.
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
        """Return logits [a, batch, classes].

        Args:
            given: parameters and x [a, batch, …].
        """
        _, logits = self._forward(given)
        return (logits,)

    @torch.no_grad()
    def compute_gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters' gradients, then losses and data terms [a, 2].

        Args:
            given: parameters, x [a, batch, …], y [a, batch] and variables, which
                cross-entropy ignores.
        """
        inputs, logits = self._forward(given)
        log_shares = logits.log_softmax(dim=2)
        losses, slope = differentiate_cross_entropy(
            log_shares, given[self._parameters + 1]
        )
        slope = torch.ops.aten._log_softmax_backward_data(
            slope, log_shares, 2, log_shares.dtype
        )
        gradients: dict[int, Tensor] = {}
        for level in reversed(range(self._lowest, len(self._places))):
            weight, bias = self._places[level]
            if weight < self._trained:
                gradients[weight] = compute_weight_gradient(inputs[level], slope)
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


# Maps ``functional_call(program, tensors, arguments)`` over lanes, for ``tensors`` and
# ``arguments`` ``[a, …]``.
call_lanes = vmap(functional_call, in_dims=(None, 0, 0), randomness="error")
# Maximum number of losses and predictions in the cache. A closure that is created again
# in every round occupies a new entry each time.
MOST = 16


def convolve_in(form: Form) -> AbstractContextManager[object]:
    """Return a context in which convolutions over lanes have a form."""
    if form == "grouped":
        return nullcontext()
    from hpcfl.clients.execution.lane_convolution import OneByOne

    return OneByOne()


class BatchedKernel(Kernel):
    """Kernel for all lanes in one call: ``vmap`` of the per-client loss.

    Each call updates the buffers among the tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        widest: int,
        form: Form = "grouped",
        keeps_bits: bool = False,
    ):
        """Begin with an empty cache of losses and predictions.

        Args:
            module: model of one client.
            widest: maximum number of lanes in one call.
            form: form of a convolution over lanes.
            keeps_bits: whether steps and predictions in which a lane's bits depend on
                other lanes run for one lane at a time.
        """
        super().__init__(module, widest)
        self.form = form
        self._keeps_bits = keeps_bits
        self._known: dict[Hashable, SameBits] = {}  # least recently used first
        self._layers = find_linear_layers(module)

    def begin(self, work: Work) -> "BatchedSession":
        buffers = {name for name, _ in self.module.named_buffers()}
        written = [place for place, name in enumerate(work.names) if name in buffers]
        key = (
            identify_function(work.loss),
            work.frozen_mode,
            len(work.trained),
            work.clip,
            *work.names,
            *work.variable_names,
        )
        compute = self.prepare(key, partial(self._build_gradients, work), work, written)
        return BatchedSession(self, work, compute, written)

    def _build_gradients(self, work: Work) -> Function:
        """Return a function that computes gradients, then losses and data terms [a, 2].

        Its arguments are the tensors of ``work``, x, y and variables.
        """
        if work.clip is not None:
            from hpcfl.clients.execution.sample_sums import SampleSums

            return SampleSums(self.module, work).compute_gradients
        layers = self._find_stacked_layers(work.names)
        if layers and work.loss == CROSS_ENTROPY:
            return LinearStack(layers, work.names, len(work.trained)).compute_gradients
        return BatchedLoss(self.module, work, self.form).compute_gradients

    def _find_stacked_layers(self, names: Sequence[str]) -> list[str]:
        """Return the names of the linear layers if ``names`` are their parameters.

        Otherwise the result is empty.
        """
        layers = self._layers
        leaves = [f"{layer}.{leaf}" for layer in layers for leaf in ("weight", "bias")]
        return layers if sorted(leaves) == sorted(names) else []

    @torch.no_grad()
    def predict(
        self,
        tensors: Tensors,
        x: Tensor,
        variables: Tensors,
        function: Predict,
    ) -> Tensor:
        self.module.eval()
        names, variable_names = list(tensors), sorted(variables)
        build = partial(self._build_prediction, function, names, variable_names)
        given = (*tensors.values(), x, *(variables[name] for name in variable_names))
        key = ("predict", identify_function(function), *names, *variable_names)
        return self.prepare(key, build)(*given)[0]

    def _build_prediction(
        self, function: Predict, names: list[str], variable_names: list[str]
    ) -> Function:
        """Return a function of the tensors ``names``, x and variables that predicts."""
        layers = self._find_stacked_layers(names)
        if layers and function is default_prediction:
            return LinearStack(layers, names, 0).predict
        return partial(self._map_prediction, function, names, variable_names)

    def _map_prediction(
        self,
        function: Predict,
        names: list[str],
        variable_names: list[str],
        *given: Tensor,
    ) -> tuple[Tensor]:
        """Return ``function`` of the lanes, given tensors, x and variables in order."""

        def predict(model: nn.Module, x: Tensor, variables: Tensors) -> Tensor:
            return function(model, wrap_samples(model, x), Lane(**variables))

        x, *values = given[len(names) :]
        named = dict(zip(names, given, strict=False)) | expand_constants(
            self.module, len(x)
        )
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        variables = dict(zip(variable_names, values, strict=True))
        with batching_clients(), convolve_in(self.form):
            return (call_lanes(Program(self.module, predict), swapped, (x, variables)),)

    def prepare(
        self,
        key: Hashable,
        build: Callable[[], Function],
        work: Work | None = None,
        written: Sequence[int] = (),
    ) -> Function:
        """Return the function that ``build`` makes, adapted to the device.

        On a CPU its bits for a lane do not depend on other lanes.

        Args:
            key: key of the function; equal keys identify equal functions.
            build: function that makes the function.
            work: lanes and loss if the function computes gradients; None if it predicts.
            written: positions of the arguments that the function changes.
        """
        known = self._known.pop(key, None)
        if known is None:
            writes = bool(written)
            known = SameBits(build(), self._keeps_bits, writes, self.dependent)
        self._known[key] = known
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return known


class BatchedSession(Session):
    """Session for all lanes in one call."""

    def __init__(
        self,
        kernel: Kernel,
        work: Work,
        compute: Function,
        written: list[int],
    ) -> None:
        """Begin a session.

        Args:
            kernel: kernel of the session.
            work: lanes and loss.
            compute: function that returns the gradients, then the losses of lanes,
                given their tensors in the order of ``work.names``, x, y and their
                variables.
            written: positions of the tensors that a call changes.
        """
        super().__init__(kernel, work)
        self._compute, self._written = compute, written

    def compute_gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        variables = self._begin_call(lanes, batch, variables)
        tensors, names = self.work.tensors, self.work.names
        chosen = [tensors[name][lanes] for name in names]
        values = [variables[name] for name in self.work.variable_names]
        *parts, losses = self._compute(*chosen, batch.x, batch.y, *values)
        if isinstance(lanes, Tensor):
            # Indices gave copies, whose buffers are written back. A slice gave views.
            for place in self._written:
                mixing.index_copy(tensors[names[place]], lanes, chosen[place])
        return dict(zip(self.work.trained, parts, strict=True)), losses


class BatchedLoss(nn.Module):
    """Losses of lanes as a function of tensors only.

    As a module it computes the loss of ONE client, and ``functional_call`` can replace
    the model's tensors in it.
    """

    def __init__(self, module: nn.Module, work: Work, form: Form):
        """Begin without the tensors of ``work``.

        Args:
            module: model of one client.
            work: lanes and loss.
            form: form of a convolution over lanes.
        """
        super().__init__()
        self.model, self._loss = module, work.loss
        self._random_layers = list_random_layers(module)
        self._knows_gradient = work.loss == CROSS_ENTROPY
        self._names, self._trained = work.names, len(work.trained)
        self._variable_names, self._form = work.variable_names, form

    def forward(self, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """Return loss and data term [2]; for ``CROSS_ENTROPY`` logits [size, classes].

        Args:
            x: samples [size, …].
            y: labels [size].
            variables: variables of the lane by name.
        """
        own = dict(variables)
        with keyed(self._random_layers, own.pop(KEYS, None)):
            samples = wrap_samples(self.model, x)
            lane = Lane(**own)
            if self._knows_gradient:
                return default_prediction(self.model, samples, lane)
            loss = self._loss(self.model, Batch(samples, y), lane)
            return stack_data_term(loss, lane)

    def compute_gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the trained parameters, ``[a, …]`` each.

        The last tensor has losses and data terms [a, 2].

        Args:
            given: parameters and buffers, x, y and variables, ``[a, …]`` each.

        Raises:
            TypeError: The logits of a client are not [samples, classes].
        """
        x, y, *values = given[len(self._names) :]
        leaves = [tensor.detach().requires_grad_() for tensor in given[: self._trained]]
        frozen = given[self._trained : len(self._names)]
        named = dict(zip(self._names, [*leaves, *frozen], strict=True))
        named |= expand_constants(self.model, len(x))
        variables = dict(zip(self._variable_names, values, strict=True))
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        with batching_clients(), convolve_in(self._form):
            outputs: Tensor = call_lanes(self, swapped, (x, y, variables))
        if self._knows_gradient:
            if outputs.dim() != 3:
                raise TypeError(
                    f"logits of a client have shape {list(outputs.shape[1:])}; "
                    "expected [samples, classes]"
                )
            log_shares = outputs.log_softmax(dim=2)
            losses, slope = differentiate_cross_entropy(log_shares, y)
            gradients = compute_gradients(log_shares, leaves, slope)
            return (*gradients, torch.stack([losses, losses], dim=1))
        # A lane's loss depends only on its own tensors, so the gradient of the sum
        # consists of the lanes' gradients.
        gradients = compute_gradients(outputs[:, 0].sum(), leaves)
        return (*gradients, outputs.detach())
