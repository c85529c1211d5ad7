"""The second form of a convolution over lanes: one lane after the other.

``vmap`` makes one convolution of all lanes, with a group for each. A GPU may take longer
for it than for a convolution of each lane. In a block of ``OneByOne`` convolutions are
computed lane by lane, and all other operators of a model still take all lanes in one
call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
)


class LaneByLane(torch.autograd.Function):
    """A convolution that ``vmap`` computes for one lane after the other.

    Its arguments are a function of the other arguments, and tensors: samples, weights
    and a bias if there is one.
    """

    @staticmethod
    def forward(convolution: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return convolution(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.convolution = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, for a loss that takes derivatives itself."""
        pull_back = torch.func.vjp(ctx.convolution, *ctx.saved_tensors)[1]
        return None, *pull_back(slope)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        convolution: Callable[..., Tensor],
        *tensors: Tensor,
    ) -> tuple[Tensor, int]:
        """Return the results of all lanes, stacked along the first dimension."""
        by_lane: list[Sequence[Tensor]] = []
        for tensor, dim in zip(tensors, in_dims[1:], strict=True):
            shared = [tensor] * info.batch_size
            by_lane.append(shared if dim is None else tensor.unbind(dim))
        results = [convolution(*of_lane) for of_lane in zip(*by_lane, strict=True)]
        return torch.stack(results), 0


class OneByOne(TorchFunctionMode):
    """A block in which convolutions under ``vmap`` take one lane after the other."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if function in CONVOLUTIONS:
            return convolve(function, *args, **keywords)
        return function(*args, **keywords)


def convolve(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *settings: Any,
    **keywords: Any,
) -> Tensor:
    """Return the result of one of CONVOLUTIONS; the arguments after ``function`` are
    torch's.
    """

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = function(x, weight, bias, *settings, **keywords)
        if result.is_cuda:
            return result
        # In autocast it is bfloat16, which vmap's batch norm refuses on a CPU beside
        # float32 statistics.
        return result.to(torch.promote_types(x.dtype, weight.dtype))

    tensors = [input, weight] if bias is None else [input, weight, bias]
    result: Tensor = LaneByLane.apply(convolution, *tensors)  # type: ignore[no-untyped-call]
    return result
