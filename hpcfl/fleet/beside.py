"""Which computations give a client the same bits whatever clients are beside it, on a
CPU.

A result may not depend on how many clients share a rank, so only these are done for
several lanes in one call. Others have other bits in other company. Of a sigmoid, a
GELU and most other activations torch computes the last few numbers of a tensor by
another formula than those before, so that it matters where a lane ends. The gradient
of batch norm adds up a channel's samples in an order that follows from the number of
channels, which is that of all lanes together. A convolution of several lanes has other
products than one of a single lane.

What is known is a closed list of torch's operators, and what is not in it goes one lane
at a time. Looking at the operators of a call sees layers, functions in a user's
``forward``, losses and predictions alike. Trying some numbers instead could pass by
luck: it depends on the sizes whether any number falls to the other formula.
``tests/fleet/test_beside.py`` compares bits for every operator here and for all layers
of torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.fleet.replay import Function

# Each number follows from numbers of its own place alone, and the formula is the same
# for all of them.
BY_ELEMENT = (
    "abs add bitwise_and bitwise_not bitwise_or clamp clamp_max clamp_min cos div "
    "eq erf exp expm1 floor_divide ge gt hardtanh hardtanh_backward le leaky_relu "
    "leaky_relu_backward log log1p logical_and logical_not logical_or lt "
    "masked_fill maximum minimum mul ne neg reciprocal relu rsqrt rsub sgn sign "
    "sin sqrt sub tanh tanh_backward threshold_backward where"
)
# Numbers are moved or made, not computed.
IN_PLACES = (
    "_to_copy _unsafe_view arange cat clone constant_pad_nd detach empty expand eye "
    "flip full full_like gather index lift_fresh new_full new_ones new_zeros ones "
    "ones_like permute repeat scalar_tensor scatter select select_backward slice "
    "slice_backward split_with_sizes squeeze stack transpose tril triu "
    "triu_indices unbind unsqueeze view zeros zeros_like"
)
# What adds up or compares does so along a lane, in an order that its sizes alone say.
# Lanes are the outermost dimension of all that is computed from tensors ``[L, …]`` by
# operators of this list.
ALONG_A_LANE = (
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward amax amin any argmax "
    "bmm embedding index_put linalg_vector_norm mean native_group_norm "
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
    torch.ops.aten._softmax_backward_data.default: 2,
    torch.ops.aten._log_softmax.default: 1,
    torch.ops.aten._log_softmax_backward_data.default: 2,
}


class Dependent(TorchDispatchMode):
    """Notes the ``names`` of operators that are called and not known to be independent
    of the lanes beside.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not is_independent(operator, args):
            self.names.add(_name(operator))
        return operator(*args, **(kwargs or {}))


def is_independent(operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator of torch gives a lane the same bits beside any others."""
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
    """Of all overloads, and of the operator that writes to its argument, such as
    ``add`` for ``aten::add_.Tensor``.
    """
    name: str = operator.overloadpacket.__name__
    return name.removesuffix("_")


class Beside:
    """A function of lanes' tensors, called for all of them at once if each lane has its
    own bits so.

    It is looked at whenever shapes are new, because a function may do something else
    then.
    """

    def __init__(
        self,
        plain: Function,
        fast: Function,
        apart: bool,
        writes: bool,
        dependent: set[str],
    ) -> None:
        """``plain`` is a function of tensors ``[L, …]`` that gives such tensors.

        Args:
            fast: the same, perhaps from recordings.
            apart: whether what depends on the lanes beside is called for one lane
                after the other.
            writes: whether it writes to its arguments.
            dependent: where the names of operators are noted that do.
        """
        self._plain, self._fast = plain, fast
        self._apart, self._writes = apart, writes
        self._dependent = dependent
        self._alone: dict[tuple[torch.Size, ...], bool] = {}  # by shapes

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple([tensor.shape for tensor in tensors])
        if shapes not in self._alone:
            self._alone[shapes] = self._depends(tensors) and self._apart
        lanes = len(tensors[0])
        if not self._alone[shapes]:
            return self._doubled(tensors) if lanes == 1 else self._fast(*tensors)
        results = [
            self._fast(*[tensor[lane : lane + 1] for tensor in tensors])
            for lane in range(lanes)
        ]
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))

    def _doubled(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the function gives for a single lane, which runs beside a copy of itself.

        A library multiplies a single pair of matrices by another kernel than several
        pairs: on Intel's processors MKL 2024.2 gives a lane with one sample other bits
        alone than beside others.
        """
        copies = [torch.cat([tensor, tensor]) for tensor in tensors]
        results = self._fast(*copies)
        if self._writes:
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy[:1])
        return tuple(result[:1] for result in results)

    def _depends(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether the function calls operators that are not known to be independent.

        It is called with copies of the first lane's tensors, because it may move
        statistics.
        """
        with Dependent() as seen:
            self._plain(*[tensor[:1].clone() for tensor in tensors])
        self._dependent |= seen.names
        return bool(seen.names)
