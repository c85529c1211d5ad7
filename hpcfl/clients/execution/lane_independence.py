"""Operators whose batched CPU result is bit-identical to the per-client result.

A result may not depend on the number of clients that share a rank. Only the operators
listed here are therefore computed for several lanes in one call; any other operator
runs for one lane at a time. Examples of operators whose bits depend on other lanes:

* Torch computes the last few elements of a sigmoid, a GELU and most other activations
  by a second formula, so the end of a lane matters.
* The gradient of batch norm sums a channel's samples in an order that depends on the
  channels of all lanes together.
* A convolution of several lanes multiplies other matrices than a convolution of a
  single lane.

The list is closed. It applies to the operators of a call, in layers, functions in a
user's ``forward``, losses and predictions alike. A trial with example numbers could
succeed by chance, because the second formula applies only for some sizes.
``tests/clients/execution/test_lane_independence.py`` compares bits for every operator
here and for all layers of torch.

``OperatorObserver`` imports a private module of torch. Torch has no public way to
observe the operators of a backward pass with their arguments: ``TorchFunctionMode``
observes only calls from Python, and the profiler records no arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., tuple[Tensor, ...]]

# Each element depends only on elements at the same position, by the same formula for
# all positions.
BY_ELEMENT = (
    "abs add bitwise_and bitwise_not bitwise_or bitwise_right_shift bitwise_xor "
    "clamp clamp_max clamp_min cos div eq erf exp expm1 floor_divide ge gt hardtanh "
    "hardtanh_backward le leaky_relu leaky_relu_backward log log1p logical_and "
    "logical_not logical_or lt masked_fill maximum minimum mul ne neg reciprocal "
    "relu rsqrt rsub sgn sign sin sqrt sub tanh tanh_backward threshold_backward "
    "where"
)
# These operators move or create elements without arithmetic.
MOVES = (
    "_to_copy _unsafe_view alias arange cat clone constant_pad_nd detach empty expand eye "
    "flip full full_like gather index lift_fresh new_full new_ones new_zeros ones "
    "ones_like permute repeat scalar_tensor scatter select select_backward slice "
    "slice_backward split_with_sizes squeeze stack transpose tril triu "
    "triu_indices unbind unsqueeze view zeros zeros_like"
)
# These operators sum or compare along a lane. With at least two lanes, the order
# depends only on the lane's sizes. Threads share the sum of a single lane: ``SameBits``
# always runs two. Lanes are the outermost dimension of all results of these operators
# on tensors ``[a, …]``.
ALONG_A_LANE = (
    "amax amin any argmax bmm embedding index_put linalg_vector_norm mean native_group_norm "
    "native_group_norm_backward native_layer_norm native_layer_norm_backward "
    "scatter_add sort sum var"
)
INDEPENDENT = frozenset(f"{BY_ELEMENT} {MOVES} {ALONG_A_LANE}".split())
# Exponents that torch computes by products, roots and quotients. Other powers have a
# second formula, like sigmoids.
POWERS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
# Position of the argument ``dim``. Along the last dimension these operators are
# independent; along other dimensions they have a second formula, like sigmoids.
SOFTMAXES = {
    torch.ops.aten._softmax.default: 1,
    torch.ops.aten._safe_softmax.default: 1,
    torch.ops.aten._softmax_backward_data.default: 2,
    torch.ops.aten._log_softmax.default: 1,
    torch.ops.aten._log_softmax_backward_data.default: 2,
}


class _Observing:
    """Dispatch of operators for ``OperatorObserver``.

    It is a separate class because torch wraps a method ``__torch_dispatch__`` that is
    defined in a direct subclass of TorchDispatchMode. The wrapper imports torch's
    compiler, which takes longer than the first rounds of a small run.
    """

    note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object]

    def __torch_dispatch__(
        self,
        operator: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.note(operator, args, kwargs or {}, result)
        return result


class OperatorObserver(_Observing, TorchDispatchMode):
    """A block in which ``note`` is called with each operator, arguments and result."""

    def __init__(
        self, note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note


class SameBits:
    """A function of tensors ``[a, …]`` on a CPU with lane-independent bits."""

    def __init__(
        self,
        function: Function,
        keeps_bits: bool,
        writes: bool,
        dependent: set[str],
    ):
        """Begin with an empty cache of results by shape.

        Args:
            function: function to call.
            keeps_bits: whether the function is called for one lane at a time if it
                calls an operator that is not independent.
            writes: whether the function changes arguments.
            dependent: set to which the names of such operators are added.
        """
        self._function = function
        self._keeps_bits, self._writes = keeps_bits, writes
        self._dependent = dependent
        # True if lanes run one at a time, by the shapes of a lane.
        self._one_by_one: dict[tuple[torch.Size, ...], bool] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results."""
        shapes = tuple([tensor.shape[1:] for tensor in tensors])
        if shapes not in self._one_by_one:
            # The operators may depend on shapes, so the function is tried for each new
            # one. It receives copies, because it may update statistics.
            first_lane = [tensor[:1].clone() for tensor in tensors]
            with note_dependent_operators() as names:
                self._function(*first_lane)
            self._dependent |= names
            self._one_by_one[shapes] = bool(names) and self._keeps_bits
        if self._one_by_one[shapes]:
            parts = []
            for lane in range(len(tensors[0])):
                alone = [tensor[lane : lane + 1] for tensor in tensors]
                parts.append(self._function(*alone))
            return tuple(torch.cat(results) for results in zip(*parts, strict=True))
        if len(tensors[0]) > 1:
            return self._function(*tensors)
        # Libraries multiply a single pair of matrices by another kernel than several
        # pairs: MKL 2024.2 on Intel processors gives a lane with one sample other bits
        # without other lanes. A single lane therefore runs together with a copy.
        copies = [torch.cat([tensor, tensor]) for tensor in tensors]
        results = self._function(*copies)
        if self._writes:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy[:1])
        return tuple(result[:1] for result in results)


@contextmanager
def note_dependent_operators() -> Iterator[set[str]]:
    """Collect the names of operators in a block that are not known to be independent."""
    names: set[str] = set()

    def note(operator: Any, args: tuple[Any, ...], *_: object) -> None:
        if not is_independent(operator, args):
            names.add(_name(operator))

    with OperatorObserver(note):
        yield names


def is_independent(operator: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operator gives a lane the same bits with any other lanes.

    Args:
        operator: operator of torch.
        args: positional arguments of the call.
    """
    if operator is torch.ops.aten.pow.Tensor_Scalar:
        return args[1] in POWERS
    if operator in SOFTMAXES:
        dimension = args[SOFTMAXES[operator]]
        return dimension in (-1, args[0].dim() - 1)
    if operator is torch.ops.aten.embedding_dense_backward.default:
        # Under vmap the gradient of the padding index is zeroed only in the first lane.
        padding = args[3]
        return bool(padding < 0)
    return operator.namespace == "aten" and _name(operator) in INDEPENDENT


def _name(operator: Any) -> str:
    """Return the name of an operator, such as ``add`` for ``aten::add_.Tensor``.

    It is the same for all overloads and for the in-place version.
    """
    name: str = operator.overloadpacket.__name__
    return name.removesuffix("_")
