"""Products ``A·W`` of mixing matrices and stacked models, and other operations on rows.

The server computes the products, and every rank does so for mixtures. Sums run in
client order in float64 and are rounded once. A mixture of equal models is therefore
exactly this model, and so is the average of a single client.

Columns are processed in blocks, which are copied to the rank's device. This bounds the
memory for any number of clients and any size of models. A CPU processes several blocks
at once; the bits of a block do not depend on the number of cores. Results on the CPU
are allocated by ``files.scratch``, so they may be larger than memory.

``index_copy`` changes torch's deterministic mode during a copy on a GPU, because torch
selects the kernel only by this process-wide setting.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from hpcfl.files import heartbeat
from hpcfl.files.scratch import Scratch

Found = TypeVar("Found")
# Number of float64 elements in a block: 1 MB, which fits into a core's cache.
BLOCK_FLOATS = 1 << 17
GPU_BLOCK_FLOATS = 1 << 25  # 256 MB, enough to occupy a GPU
# Threshold of ‖a − b‖² relative to ‖a‖² + ‖b‖². A smaller value computed from products
# would have fewer than twelve correct digits.
CLOSE = 0.01
HELD = 1 << 27  # maximum number of bytes of results that wait for the caller
# Number of bytes of the largest page-locked copy. Larger tensors are copied through the
# driver's own page-locked memory, which is slower.
LOCKED = 1 << 28
# Numbers of the GPU streams for products and checkpoints, besides the default stream.
PRODUCTS, CHECKPOINTS = (0, 1), 2


class Place(NamedTuple):
    """The place of products of the thread that plays a run.

    Attributes:
        device: device that processes blocks of matrices on the CPU.
        cores: number of blocks that the CPU processes at once.
        memory: allocator of large matrices on the CPU.
    """

    device: torch.device
    cores: int
    memory: Scratch


ONE_CORE = Place(torch.device("cpu"), 1, Scratch())
# A context variable avoids passing the place to all functions that compute products.
_place = ContextVar("place", default=ONE_CORE)


def use_device(
    device: torch.device, cores: int = 1, memory: Scratch | None = None
) -> None:
    """Set the device that processes blocks of matrices on the CPU, for this thread.

    Args:
        device: device of the rank.
        cores: number of blocks to process at once if the device is the CPU.
        memory: allocator of large matrices on the CPU.
    """
    _place.set(Place(device, max(1, cores), memory or Scratch()))


def get_place() -> Place:
    """Return the place of this thread's products."""
    return _place.get()


def get_large_memory() -> Scratch:
    """Return the allocator of matrices that may be larger than memory."""
    return get_place().memory


def mix(matrix: Tensor, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return ``matrix @ rows``, computed in float64, ``[m, width]``.

    Args:
        matrix: mixing matrix ``[m, n]``.
        rows: models ``[n, width]``.
        dtype: type of the result, by default the type of ``rows``.
    """
    return _multiply(torch.matmul, matrix, rows, dtype or rows.dtype)


def combine(matrix: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``mix(matrix, rows)`` in a fixed order of additions.

    The bits of a result do not depend on the other rows of ``matrix`` or on the device.
    A library's product may add in another order for matrices of another shape, but is
    about four times as fast.

    Args:
        matrix: mixing matrix ``[m, n]``.
        rows: models ``[n, width]``.
        dtype: type of the result.
    """
    return _multiply(_multiply_in_order, matrix, rows, dtype)


def multiply_lanes(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return ``matrix @ rows`` in their own type, with one lane per row of ``matrix``.

    On a CPU the product is computed row by row, so that a lane's bits do not depend on
    other lanes. On a GPU equal bits are guaranteed only for equal lanes, so one product
    reads ``rows`` once. Rows on the CPU are copied to the GPU in blocks of columns.

    Args:
        matrix: coefficients of the lanes, ``[a, n]``.
        rows: rows to combine, ``[n, width]``, on the CPU or on the device of
            ``matrix``.
    """
    device = matrix.device
    if device.type == "cpu":
        return torch.stack([row @ rows for row in matrix])
    if rows.device == device:
        return matrix @ rows
    products = []
    for columns in cut_blocks(rows.shape[1], len(rows), device):
        products.append(matrix @ move_to_device(rows[:, columns], device))
    return torch.cat(products, dim=1)


def average(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted mean ``[width]`` of rows.

    Args:
        weights: weights [n], which must sum to one.
        rows: rows [n, width].
    """
    return mix(weights[None], rows)[0]


def sum_rows(rows: Tensor) -> Tensor:
    """Return the sum of each row [n], with bits independent of other rows.

    torch sums a single long row in pieces on ``runtime.threads`` threads, but each of
    several rows on one thread. A single row is therefore summed together with a copy.
    """
    if len(rows) == 1 and rows.device.type == "cpu":
        return rows.expand(2, -1).sum(dim=1)[:1]
    return rows.sum(dim=1)


def pick(rows: Tensor, positions: Tensor) -> Tensor:
    """Return a copy of the rows at ``positions`` [n]."""
    return torch.index_select(rows, 0, positions, out=_allocate(rows, len(positions)))


def replace(rows: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """Return a copy of ``rows`` in which some rows are replaced.

    If all rows are replaced, the result is ``new`` itself.

    Args:
        rows: rows [M, width].
        positions: positions [n] of the rows to replace, ascending.
        new: new rows [n, width].
    """
    if len(positions) == len(rows):
        return new
    copy = _allocate(rows, len(rows)).copy_(rows)
    return copy.index_copy_(0, positions, new)


def index_copy(whole: Tensor, index: slice | Tensor, rows: Tensor) -> None:
    """Set ``whole[index] = rows`` in place, along the first dimension.

    With equal indices a GPU would store an arbitrary one of the rows. torch's
    deterministic kernels therefore sort the indices first and need about thirty
    launches instead of one. The indices here are distinct, so both kernels give the
    same bits. torch selects the kernel only by a process-wide setting, which is
    restored immediately.

    Args:
        whole: tensor to change.
        index: slice, or distinct indices [k].
        rows: new values.
    """
    if isinstance(index, slice):
        whole[index] = rows
    elif not whole.is_cuda:
        whole.index_copy_(0, index, rows)
    else:
        mode = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode(0)
        try:
            whole.index_copy_(0, index, rows)
        finally:
            torch.set_deterministic_debug_mode(mode)


def repeat(row: Tensor, count: int) -> Tensor:
    """Return ``count`` copies of a row [width] as ``[count, width]``."""
    return _allocate(row[None], count).copy_(row)


def compute_distances(rows: Tensor, others: Tensor) -> Tensor:
    """Return the Euclidean distances between rows, ``[m, n]``, float64.

    They are computed from differences, because the Gram expansion ‖a‖² + ‖b‖² − 2ab has
    no correct digits for nearly equal models (methods-1.md §2).

    Args:
        rows: rows [m, width].
        others: rows [n, width].
    """

    def compute_squares(left: Tensor, right: Tensor) -> Tensor:
        return compute_block_distances(left, right).square()

    return sum_blocks(compute_squares, rows, others).sqrt()


def compute_distances_within(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return ``compute_distances(rows[first], rows[second])`` without row copies.

    Products take half the time of differences, so distances are computed as ‖a − b‖² =
    ‖a‖² + ‖b‖² − 2ab, with a and b relative to the mean of all chosen rows. Only
    distances of close pairs are computed from differences.

    Args:
        rows: rows of all models.
        first: positions [m].
        second: positions [n].
    """
    chosen, place = torch.unique(torch.cat([first, second]), return_inverse=True)

    def multiply_centred(block: Tensor) -> Tensor:
        centred = block[chosen].double()
        centred -= centred.mean(dim=0)
        return centred @ centred.T

    products = sum_blocks(multiply_centred, rows)
    sizes = products.diagonal()[:, None] + products.diagonal()
    squares = (sizes - 2 * products).fill_diagonal_(0)
    close = squares < CLOSE * sizes.fill_diagonal_(0)
    near = (close | close.T).any(dim=1).nonzero()[:, 0]
    if len(near):

        def measure_close(block: Tensor) -> Tensor:
            close_rows = block[chosen[near]]
            return compute_block_distances(close_rows, close_rows).square()

        exact = sum_blocks(measure_close, rows)
        pairs = near[:, None], near
        squares[pairs] = exact.where(close[pairs], squares[pairs])
    return squares.sqrt()[place[: len(first), None], place[len(first) :]]


def sum_blocks(part: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Return the sum of ``part(*blocks)`` over blocks of columns.

    Args:
        part: function of blocks. It may run in several threads at once, so it must
            change only its own data.
        matrices: matrices ``[n, width]`` or rows ``[width]``; ``part`` receives the
            same columns of each.
    """
    device = _choose_device(matrices[0])
    width = matrices[0].shape[-1]
    rows = sum(len(matrix) for matrix in matrices if matrix.dim() > 1)

    def work(columns: slice) -> Tensor:
        return part(
            *(move_to_device(matrix[..., columns], device) for matrix in matrices)
        )

    parts = compute_on_all_cores(work, cut_blocks(width, rows, device), device)
    return cast(Tensor, sum(parts)).to(matrices[0].device)


def _multiply(
    multiply: Callable[[Tensor, Tensor], Tensor],
    matrix: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``multiply(matrix, rows)`` in float64, rounded once to ``dtype``."""
    device = _choose_device(rows)
    # The device converts to float64, which halves the bytes to transfer and saves work
    # on the host.
    matrix = matrix.to(device).double()
    products = _allocate(rows, len(matrix), dtype)

    def multiply_columns(columns: slice) -> Tensor:
        return multiply(matrix, move_to_device(rows[:, columns], device).double())

    def work(columns: slice) -> None:
        products[:, columns] = multiply_columns(columns)  # the copy rounds to dtype

    cuts = cut_blocks(rows.shape[1], sum(matrix.shape), device)
    if device == products.device:
        for _ in compute_on_all_cores(work, cuts, device):
            pass
        return products

    def round_columns(columns: slice) -> Tensor:
        return multiply_columns(columns).to(dtype)

    for columns, product in compute_on_two_streams(round_columns, cuts, device):
        products[:, columns] = product
    return products


def compute_on_two_streams(
    work: Callable[[slice], Tensor], cuts: Iterator[slice], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Yield each of the cuts with the result of ``work`` on a GPU, copied to the CPU.

    The GPU computes the previous block on another stream while the host copies.

    Args:
        work: function of a slice of columns that returns a tensor on the GPU.
        cuts: slices of columns.
        device: GPU.
    """
    under_way: deque[tuple[torch.cuda.Stream, slice, Tensor]] = deque()
    streams = [open_side_stream(device, number) for number in PRODUCTS]
    for columns in cuts:
        stream = streams[0]
        streams.reverse()
        with torch.cuda.stream(stream):
            result = work(columns)
            copy = torch.empty_like(result, device="cpu", pin_memory=True)
            copy.copy_(result, non_blocking=True)
        under_way.append((stream, columns, copy))
        if len(under_way) == len(streams):
            yield _await(*under_way.popleft())
    while under_way:
        yield _await(*under_way.popleft())


def _await(
    stream: torch.cuda.Stream, columns: slice, copy: Tensor
) -> tuple[slice, Tensor]:
    """Wait until a copy is complete."""
    stream.synchronize()
    return columns, copy


def open_side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return a stream of a GPU that waits only for work submitted to the GPU so far."""
    stream = _make_stream(device, number)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


@cache
def _make_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return the GPU stream with a number, which all calls share.

    Libraries keep memory for each stream.
    """
    return torch.cuda.Stream(device)


def copy_beside_training() -> AbstractContextManager[object]:
    """Return a block for copies from this rank's GPU in another thread.

    The copies wait for work submitted so far, but not for later training.
    """
    device = get_place().device
    if device.type == "cpu":
        return nullcontext()
    return torch.cuda.stream(open_side_stream(device, CHECKPOINTS))


def compute_on_all_cores(
    work: Callable[[slice], Found], cuts: Iterator[slice], device: torch.device
) -> Iterator[Found]:
    """Yield the result of ``work`` for each cut in order; a CPU runs several at once.

    Results in progress take at most ``HELD`` bytes, estimated from the first result. In
    a thread ``work`` runs outside contexts of the caller such as ``torch.no_grad``.

    Args:
        work: function of a slice of columns.
        cuts: slices of columns.
        device: device on which ``work`` computes.
    """
    cores = get_place().cores
    in_main_thread = threading.current_thread() is threading.main_thread()
    several = device.type == "cpu" and cores > 1 and in_main_thread
    most_pending = 1
    for columns in islice(cuts, 1):
        first = work(columns)
        yield first
        if several:
            size = first.nbytes if isinstance(first, Tensor) else 0
            # One more than the number of cores, so that no core waits for the caller.
            most_pending = min(cores + 1, HELD // max(1, size))
    if most_pending < 2:
        yield from map(work, cuts)
        return
    pool = _make_pool(cores, torch.get_num_threads())
    under_way: deque[Future[Found]] = deque()
    try:
        for columns in cuts:
            under_way.append(pool.submit(work, columns))
            if len(under_way) == most_pending:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:  # after a failure, wait for tasks in the background
        wait([future for future in under_way if not future.cancel()])


@cache
def _make_pool(cores: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread pool for blocks, with ``threads`` threads for each operation."""
    # A thread keeps its first setting, and products with another number of threads may
    # have other bits.
    return ThreadPoolExecutor(cores, "blocks", lambda: torch.set_num_threads(threads))


# A forked process does not have the threads of its parent.
os.register_at_fork(after_in_child=_make_pool.cache_clear)


def _multiply_in_order(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return ``matrix @ rows``, with products added in the order of ``rows``.

    ``addcmul`` is unsuitable, because it rounds product and sum together for some
    elements only.
    """
    total = matrix[:, :1] * rows[0]
    product = torch.empty_like(total)
    for weights, row in zip(matrix.T[1:, :, None], rows[1:], strict=True):
        total += torch.mul(weights, row, out=product)
    return total


def compute_block_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return distances [m, n], float64, without a matrix product.

    A product would be the Gram expansion.
    """
    return torch.cdist(
        left.double(), right.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )


def _choose_device(rows: Tensor) -> torch.device:
    """Return the device that processes blocks of these rows."""
    return get_place().device if rows.device.type == "cpu" else rows.device


def _allocate(like: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate ``count`` uninitialised rows with the width and device of ``like``.

    Args:
        dtype: type of the rows, by default the type of ``like``.
    """
    shape = [count, like.shape[1]]
    dtype = dtype or like.dtype
    if like.device.type == "cpu":
        return get_large_memory().empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=like.device)


def cut_blocks(
    width: int, rows: int, device: torch.device, floats: int | None = None
) -> Iterator[slice]:
    """Cut columns into blocks for a device, and send a heartbeat for each block.

    Args:
        width: number of columns.
        rows: number of rows in a block.
        device: device that processes the blocks.
        floats: number of elements of a block on the CPU, by default BLOCK_FLOATS.
    """
    in_block = GPU_BLOCK_FLOATS
    if device.type == "cpu":
        in_block = floats or BLOCK_FLOATS
    step = max(1, in_block // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, start + step)
        heartbeat.beat()  # reading rows from files may take a long time


# Transfers of up to LOCKED bytes use page-locked memory, which a GPU copies faster.


def move_to_host(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU unchanged, or a copy of a tensor on a GPU.

    The copy is page-locked up to LOCKED bytes.
    """
    if not tensor.is_cuda:
        return tensor
    if tensor.nbytes > LOCKED:
        return get_large_memory().copy(tensor)
    return torch.empty_like(
        tensor, device="cpu", pin_memory=True, memory_format=torch.contiguous_format
    ).copy_(tensor)


def move_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to ``device``, without blocking the host up to LOCKED bytes.

    A transfer from the CPU to a GPU uses page-locked memory. Tensors that are larger,
    already on a GPU, or in page-locked memory are moved directly.
    """
    is_direct = device.type == "cpu" or tensor.is_cuda or tensor.is_pinned()
    if is_direct or tensor.nbytes > LOCKED:
        return tensor.to(device)
    # A transposed tensor keeps its layout, so that the copy is sequential.
    staged = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return staged.to(device, non_blocking=True)


def stack_on_device(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack tensors ``[*shape]`` into ``[n, *shape]`` on ``device``.

    Args:
        rows: tensors, each on the CPU or on ``device``.
        device: device of the result.
    """
    if device.type == "cpu":
        stacked = get_large_memory().empty((len(rows), *rows[0].shape), rows[0].dtype)
        return torch.stack([move_to_host(row) for row in rows], out=stacked)
    host = [row for row in rows if not row.is_cuda]
    if not host:
        return torch.stack(list(rows))
    if sum(row.nbytes for row in host) > LOCKED:
        shape = (len(rows), *rows[0].shape)
        stacked = torch.empty(shape, dtype=rows[0].dtype, device=device)
        for target, row in zip(stacked, rows, strict=True):
            target.copy_(row)
        return stacked
    staged = torch.empty(
        (len(host), *host[0].shape), dtype=host[0].dtype, pin_memory=True
    )
    arrived = iter(torch.stack(host, out=staged).to(device, non_blocking=True))
    return torch.stack([row if row.is_cuda else next(arrived) for row in rows])
