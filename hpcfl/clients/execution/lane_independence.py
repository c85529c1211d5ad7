"""Operators whose batched CPU result is bit-identical to the per-client result.

A result may not depend on how many clients share a rank. So only these operators are
computed for several lanes in one call. Other operators give bits that depend on the
lanes beside. Torch computes the last few numbers of a sigmoid, a GELU and most other
activations by a second formula. The end of a lane then matters. The gradient of batch
norm sums a channel's samples in an order that depends on the channels of all lanes
together. A convolution of several lanes multiplies other matrices than that of a single
lane.

This module has a closed list of torch's operators. Any other operator runs for one lane
at a time. The operators of a call cover layers, functions in a user's ``forward``,
losses and predictions alike. A trial with some numbers could succeed by chance, because
the second formula applies only for some sizes.
``tests/clients/execution/test_lane_independence.py`` compares bits for every operator
here and for all layers of torch.

``OperatorObserver`` imports a private module of torch, which has no public way to see the
operators of a backward pass with their arguments: ``TorchFunctionMode`` sees the calls
of Python alone, and the profiler records no arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., tuple[Tensor, ...]]

# Each number follows from numbers of its own place alone, and the formula is the same
# for all of them.
BY_ELEMENT = (
    "abs add bitwise_and bitwise_not bitwise_or bitwise_right_shift bitwise_xor "
    "clamp clamp_max clamp_min cos div eq erf exp expm1 floor_divide ge gt hardtanh "
    "hardtanh_backward le leaky_relu leaky_relu_backward log log1p logical_and "
    "logical_not logical_or lt masked_fill maximum minimum mul ne neg reciprocal "
    "relu rsqrt rsub sgn sign sin sqrt sub tanh tanh_backward threshold_backward "
    "where"
)
# Numbers are moved or made, not computed.
IN_PLACES = (
    "_to_copy _unsafe_view alias arange cat clone constant_pad_nd detach empty expand eye "
    "flip full full_like gather index lift_fresh new_full new_ones new_zeros ones "
    "ones_like permute repeat scalar_tensor scatter select select_backward slice "
    "slice_backward split_with_sizes squeeze stack transpose tril triu "
    "triu_indices unbind unsqueeze view zeros zeros_like"
)
# These operators sum or compare along a lane. With two lanes or more, the order follows
# from the lane's sizes alone. Threads share the sum of a single lane, so ``SameBits``
# always runs two. Lanes are the outermost dimension of all results of these operators
# on tensors ``[L, …]``.
ALONG_A_LANE = (
    "amax amin any argmax bmm embedding index_put linalg_vector_norm mean native_group_norm "
    "native_group_norm_backward native_layer_norm native_layer_norm_backward "
    "scatter_add sort sum var"
)
INDEPENDENT = frozenset(f"{BY_ELEMENT} {IN_PLACES} {ALONG_A_LANE}".split())
# Powers that are products, roots and quotients; others are like sigmoids.
POWERS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
# Along the last dimension, which is the argument of this number; along others they are
# like sigmoids.
SOFTMAXES = {
    torch.ops.aten._softmax.default: 1,
    torch.ops.aten._safe_softmax.default: 1,
    torch.ops.aten._softmax_backward_data.default: 2,
    torch.ops.aten._log_softmax.default: 1,
    torch.ops.aten._log_softmax_backward_data.default: 2,
}


class _Observing:
    """Dispatch of operators for ``OperatorObserver``.

    It is a class of its own because torch wraps a method ``__torch_dispatch__`` that a
    subclass of TorchDispatchMode defines itself. The wrapper imports torch's compiler,
    which takes longer than the first rounds of a small run.

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
    """Calls ``note`` with each operator that runs in a block, its arguments and its
    result.
    """

    def __init__(
        self, note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note


class SameBits:
    """A function of tensors ``[L, …]`` on a CPU, whose results for a lane do not depend
    on the lanes beside it.
    """

    def __init__(
        self,
        function: Function,
        keeps_bits: bool,
        writes: bool,
        dependent: set[str],
    ):
        """Args:
        keeps_bits: whether a function in which a lane's bits depend on the lanes beside
            is called for one lane after the other.
        writes: whether the function changes arguments.
        dependent: where the names of operators are noted that make it so.
        """
        self._function = function
        self._keeps_bits, self._writes = keeps_bits, writes
        self._dependent = dependent
        self._one_by_one: dict[tuple[torch.Size, ...], bool] = {}  # by shapes of a lane

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results."""
        shapes = tuple([tensor.shape[1:] for tensor in tensors])
        if shapes not in self._one_by_one:
            # A function may do something else for new shapes. It gets copies of the
            # first lane's tensors, because it may move statistics.
            first_lane = [tensor[:1].clone() for tensor in tensors]
            with dependent_operators() as names:
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
        # A library multiplies a single pair of matrices by another kernel than several
        # pairs: on Intel's processors MKL 2024.2 gives a lane with one sample other
        # bits alone than beside others. So a single lane runs beside a copy of itself.
        copies = [torch.cat([tensor, tensor]) for tensor in tensors]
        results = self._function(*copies)
        if self._writes:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy[:1])
        return tuple(result[:1] for result in results)


@contextmanager
def dependent_operators() -> Iterator[set[str]]:
    """Note the operators that are called in a block and that are not known to be
    independent of the lanes beside.
    """
    names: set[str] = set()

    def note(operator: Any, args: tuple[Any, ...], *_: object) -> None:
        if not is_independent(operator, args):
            names.add(_name(operator))

    with OperatorObserver(note):
        yield names


def is_independent(operator: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operator gives a lane the same bits beside any other lanes."""
    if operator is torch.ops.aten.pow.Tensor_Scalar:
        return args[1] in POWERS
    if operator in SOFTMAXES:
        dimension = args[SOFTMAXES[operator]]
        return dimension in (-1, args[0].dim() - 1)
    if operator is torch.ops.aten.embedding_dense_backward.default:
        # Under vmap the gradient of the padding is left out in the first lane only.
        padding = args[3]
        return bool(padding < 0)
    return operator.namespace == "aten" and _name(operator) in INDEPENDENT


def _name(operator: Any) -> str:
    """Name all overloads alike, and the operator that writes to its argument, such as
    ``add`` for ``aten::add_.Tensor``.
    """
    name: str = operator.overloadpacket.__name__
    return name.removesuffix("_")
