"""Convolutions over lanes, computed one lane at a time.

``vmap`` makes one grouped convolution of all lanes. On a GPU it can be slower than one
convolution per lane. In a block of ``OneByOne`` convolutions are computed lane by lane;
all other operators of a model process all lanes in one call.
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
    """A convolution that ``vmap`` computes for one lane at a time.

    Its arguments are the convolution as a function, and its tensors: samples, weights
    and an optional bias.
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
        """Return the gradients, by functions that a loss can differentiate again."""
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
    """A block in which convolutions under ``vmap`` are computed for one lane at a time."""

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
    """Return the result of one of CONVOLUTIONS.

    The arguments after ``function`` are the arguments of torch's convolutions.
    """

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = function(x, weight, bias, *settings, **keywords)
        if result.is_cuda:
            return result
        # With autocast it is bfloat16, which vmap's batch norm on a CPU does not accept
        # together with float32 statistics.
        return result.to(torch.promote_types(x.dtype, weight.dtype))

    tensors = [input, weight] if bias is None else [input, weight, bias]
    result: Tensor = LaneByLane.apply(convolution, *tensors)  # type: ignore[no-untyped-call]
    return result
