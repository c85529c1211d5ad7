"""Properties of torch's operations on a GPU: whether the host waits for the result,
whether they draw random numbers, and the number of kernels.
"""

from functools import cache

import torch
from torch import Tensor

aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
# the shape of the result, or the result, is a number that only the device has
ASKING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
}
# no kernel: allocations, or reads by the host
NO_KERNEL = {
    "_local_scalar_dense",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "detach",
    "alias",
    "lift_fresh",
    "_unsafe_view",
    "is_pinned",
    "_has_compatible_shallow_copy_type",
}
# sums in the order of atomic additions, unless torch uses its deterministic kernels
UNORDERED = {
    "scatter_add",
    "scatter_add_",
    "index_add",
    "index_add_",
    "embedding_dense_backward",
    "scatter_reduce",
    "scatter_reduce_",
    "histc",
}
CHUNK, CHUNKS = (
    65_536,
    320,
)  # numbers in a chunk, chunks in one launch of a fused list operation


def name_of(operation) -> str:
    return operation._schema.name.partition("::")[2]


@cache
def launches_nothing(operation) -> bool:
    """Return whether an operation launches no kernel: views, and those in
    ``NO_KERNEL``.
    """
    aliases = [result.alias_info for result in operation._schema.returns]
    views = bool(aliases) and all(
        alias is not None and not alias.is_write for alias in aliases
    )
    return (
        views
        or torch.Tag.inplace_view in operation.tags
        or name_of(operation) in NO_KERNEL
    )


@cache
def is_random(operation) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


@cache
def takes_host_scalars(operation) -> bool:
    """Return whether a tensor without dimensions may be on the CPU, like a number."""
    return torch.Tag.pointwise in operation.tags or name_of(operation).startswith(
        ("where", "lerp", "clamp")
    )


def why_it_waits(operation, args) -> str | None:
    """Return what the host reads from the device before it continues; None if it
    continues at once.
    """
    if operation in ASKING:
        return name_of(operation)
    if operation in INDEXING and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in args[1]
    ):
        return "an index by a mask"
    return None


def kernels(operation, args) -> int:
    """Return an estimate of the number of kernels: one, except for the patches of
    images and for lists of tensors.
    """
    if launches_nothing(operation):
        return 0
    name = name_of(operation)
    if name == "im2col":  # one for each image
        return len(args[0])
    return _of_lists(args) if name.startswith("_foreach") else 1


def _of_lists(args) -> int:
    """Return one launch for many chunks if all lists have the same layout, else one for
    every tensor.
    """
    lists = [
        arg
        for arg in args
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)
    ]
    first = lists[0]
    alike = all(
        tensor.dtype == first[0].dtype
        and tensor.stride() == like.stride()
        and _dense(tensor)
        for one in lists
        for tensor, like in zip(one, first, strict=True)
    )
    if not alike:
        return len(first)
    return max(1, -(-sum(-(-tensor.numel() // CHUNK) for tensor in first) // CHUNKS))


def _dense(tensor) -> bool:
    """Return whether the numbers have no gaps or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
