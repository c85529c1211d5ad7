"""Many client models in one call: the loss of one client, mapped over lanes with
``torch.func``.

For linear layers with ReLU the gradients of cross-entropy are computed by hand. ``vmap``
and autograd spend a fixed time in Python, whatever the size of a batch, which is longer
than the arithmetic of small dense models. ``LinearStack`` calls the same operators in
the same order and so gives the same bits. The gradient of ``log_softmax`` is autograd's
operator of ATen: torch has no public function for it.
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
    function_key,
    stack_data_term,
    wrap_samples,
)
from hpcfl.experiment.sections import Form
from hpcfl.models.mlp import MLP
from hpcfl.models.random import keyed, random_layers
from hpcfl.models.replaced import side_by_side
from hpcfl.rows import mixing

# Inputs or outputs of a layer. With torch 2.13 on AMD EPYC both products have the same
# bits from 12 on.
SMALL = 16


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


def weight_gradient(inputs: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient of a linear layer's weights, [a, outputs, inputs].

    Large layers get it in the layout of their weights, which makes the update three
    times faster. For layers below ``SMALL`` MKL on AMD's processors has kernels that
    round the two products differently, so they keep the order of autograd.

    Args:
        inputs: of the layer, [a, batch, inputs].
        slope: the gradient with respect to its outputs, [a, batch, outputs].
    """
    if min(inputs.shape[2], slope.shape[2]) >= SMALL:
        return torch.bmm(slope.transpose(1, 2), inputs)
    return torch.bmm(inputs.transpose(1, 2), slope).transpose(1, 2)


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
        log_shares = logits.log_softmax(dim=2)
        losses, slope = cross_entropy(log_shares, given[self._parameters + 1])
        slope = torch.ops.aten._log_softmax_backward_data(
            slope, log_shares, 2, log_shares.dtype
        )
        gradients: dict[int, Tensor] = {}
        for level in reversed(range(self._lowest, len(self._places))):
            weight, bias = self._places[level]
            if weight < self._trained:
                gradients[weight] = weight_gradient(inputs[level], slope)
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


# ``functional_call(program, tensors, arguments)`` for each lane with its own ``tensors``
# and ``arguments``, ``[L, …]`` by name and in order.
call_lanes = vmap(functional_call, in_dims=(None, 0, 0), randomness="error")
# Losses and predictions of which is kept what was found out; a closure made anew in
# every round is a new one.
MOST = 16


def convolve_in(form: Form) -> AbstractContextManager[object]:
    """Give convolutions over lanes a form in a block."""
    if form == "grouped":
        return nullcontext()
    from hpcfl.clients.execution.lane_convolution import OneByOne

    return OneByOne()


class BatchedKernel(Kernel):
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    Each call moves the buffers among the tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        widest: int,
        form: Form = "grouped",
        keeps_bits: bool = False,
    ):
        """Begin with what is known of no loss.

        Args:
            form: of a convolution over lanes.
            keeps_bits: whether a step or a prediction in which a lane's bits depend on the
                others is done for one lane after the other.
        """
        super().__init__(module, widest)
        self.form = form
        self._keeps_bits = keeps_bits
        self._known: dict[Hashable, SameBits] = {}  # the oldest use first
        self._layers = find_linear_layers(module)

    def begin(self, work: Work) -> "BatchedSession":
        buffers = {name for name, _ in self.module.named_buffers()}
        written = [place for place, name in enumerate(work.names) if name in buffers]
        kind = function_key(work.loss), work.frozen, len(work.trained), work.clip
        key = (*kind, *work.names, *work.variable_names)
        compute = self.prepare(key, partial(self._differentiate, work), work, written)
        return BatchedSession(self, work, compute, written)

    def _differentiate(self, work: Work) -> Function:
        """Return the function of the tensors of ``work``, x, y and variables that gives
        the gradients, and then losses and data terms [a, 2].
        """
        if work.clip is not None:
            from hpcfl.clients.execution.sample_sums import SampleSums

            return SampleSums(self.module, work).gradients
        if work.loss == CROSS_ENTROPY and (layers := self._stacked_layers(work.names)):
            return LinearStack(layers, work.names, len(work.trained)).gradients
        return BatchedLoss(self.module, work, self.form).gradients

    def _stacked_layers(self, names: Sequence[str]) -> list[str]:
        """Return the layers of a stack of linear layers with the parameters ``names``,
        else none.
        """
        layers = self._layers or []
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
        build = partial(self._prediction, function, names, variable_names)
        given = (*tensors.values(), x, *(variables[name] for name in variable_names))
        key = ("predict", function_key(function), *names, *variable_names)
        return self.prepare_prediction(key, build)(*given)[0]

    def _prediction(
        self, function: Predict, names: list[str], variable_names: list[str]
    ) -> Function:
        """Return the function of the tensors ``names``, x and variables that gives a
        prediction.
        """
        layers = self._stacked_layers(names) if function is default_prediction else []
        if layers:
            return LinearStack(layers, names, 0).predict
        return partial(self._map_prediction, function, names, variable_names)

    def _map_prediction(
        self,
        function: Predict,
        names: list[str],
        variable_names: list[str],
        *given: Tensor,
    ) -> tuple[Tensor]:
        """Return ``function`` of lanes, given their tensors, x and variables in order."""

        def predict(model: nn.Module, x: Tensor, lane: Tensors) -> Tensor:
            return function(model, wrap_samples(model, x), Lane(**lane))

        x, *values = given[len(names) :]
        named = dict(zip(names, given, strict=False)) | expand_constants(
            self.module, len(x)
        )
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        lanes = dict(zip(variable_names, values, strict=True))
        with side_by_side(), convolve_in(self.form):
            return (call_lanes(Program(self.module, predict), swapped, (x, lanes)),)

    def prepare(
        self,
        key: Hashable,
        build: Callable[[], Function],
        work: Work,
        written: Sequence[int],
    ) -> Function:
        """Return the gradients that ``build`` makes for some work, as this device
        computes them.

        Args:
            key: equal keys stand for equal functions.
            written: positions of arguments that the function changes.
        """
        return self._keep_bits(key, build, writes=bool(written))

    def prepare_prediction(
        self, key: Hashable, build: Callable[[], Function]
    ) -> Function:
        """Return the prediction that ``build`` makes, as this device computes it."""
        return self._keep_bits(key, build, writes=False)

    def _keep_bits(
        self, key: Hashable, build: Callable[[], Function], writes: bool
    ) -> Function:
        """Return the function that ``build`` makes on a CPU; ``writes``: as for
        ``SameBits``.
        """
        known = self._known.pop(key, None)
        if known is None:
            known = SameBits(build(), self._keeps_bits, writes, self.dependent)
        self._known[key] = known
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return known


class BatchedSession(Session):
    """A session of all lanes in one call."""

    def __init__(
        self,
        kernel: Kernel,
        work: Work,
        compute: Function,
        written: list[int],
    ) -> None:
        """Begin a session.

        Args:
            compute: returns the gradients and then the losses of lanes, given their
                tensors in the order of ``work.names``, x, y and their variables.
            written: positions of the tensors that a call moves.
        """
        super().__init__(kernel, work)
        self._compute, self._written = compute, written

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        variables = self._with_keys(lanes, batch, variables)
        tensors, names = self.work.tensors, self.work.names
        chosen = [tensors[name][lanes] for name in names]
        values = [variables[name] for name in self.work.variable_names]
        *parts, losses = self._compute(*chosen, batch.x, batch.y, *values)
        if isinstance(lanes, Tensor):
            # Indices gave copies; a slice gave views, whose buffers moved in place.
            for place in self._written:
                mixing.index_copy(tensors[names[place]], lanes, chosen[place])
        return dict(zip(self.work.trained, parts, strict=True)), losses


class BatchedLoss(nn.Module):
    """The losses of lanes as a function of tensors alone. As a module it computes the loss
    of ONE client, and ``functional_call`` can swap the model's tensors in it.
    """

    def __init__(self, module: nn.Module, work: Work, form: Form):
        """Begin without the tensors of ``work``. ``form`` is that of a convolution over
        lanes.
        """
        super().__init__()
        self.model, self._loss = module, work.loss
        self._random_layers = random_layers(module)
        self._knows_gradient = work.loss == CROSS_ENTROPY
        self._names, self._trained = work.names, len(work.trained)
        self._variable_names, self._form = work.variable_names, form

    def forward(self, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """Loss and data term [2] on ``x`` [size, …] and ``y`` [size]; for
        ``CROSS_ENTROPY`` the logits [size, classes].
        """
        own = dict(variables)
        with keyed(self._random_layers, own.pop(KEYS, None)):
            samples = wrap_samples(self.model, x)
            lane = Lane(**own)
            if self._knows_gradient:
                return default_prediction(self.model, samples, lane)
            loss = self._loss(self.model, Batch(samples, y), lane)
            return stack_data_term(loss, lane)

    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the trained parameters, ``[a, …]`` each. The last
        tensor holds losses and data terms [a, 2].

        Args:
            given: ``[a, …]`` each: the parameters and buffers, x, y and the variables.
        """
        x, y, *variables = given[len(self._names) :]
        leaves = [tensor.detach().requires_grad_() for tensor in given[: self._trained]]
        frozen = given[self._trained : len(self._names)]
        named = dict(zip(self._names, [*leaves, *frozen], strict=True))
        named |= expand_constants(self.model, len(x))
        lanes = dict(zip(self._variable_names, variables, strict=True))
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        with side_by_side(), convolve_in(self._form):
            outputs: Tensor = call_lanes(self, swapped, (x, y, lanes))
        if self._knows_gradient:
            if outputs.dim() != 3:
                raise TypeError(
                    f"logits of a client have shape {list(outputs.shape[1:])}; "
                    "expected [samples, classes]"
                )
            log_shares = outputs.log_softmax(dim=2)
            losses, slope = cross_entropy(log_shares, y)
            gradients = compute_gradients(log_shares, leaves, slope)
            return (*gradients, torch.stack([losses, losses], dim=1))
        # A lane's loss depends on its own tensors alone, so the gradient of the sum
        # holds every lane's own.
        gradients = compute_gradients(outputs[:, 0].sum(), leaves)
        return (*gradients, outputs.detach())
