"""Products ``A·W``: mixing matrices applied to stacked models, by the server, and by
every rank to mixtures.

Sums run in client order in float64 and are rounded once, so equal models mix to exactly
themselves and a single client's average is exactly its model.

Columns are taken in blocks, which are copied to the rank's device and worked on there:
the memory that this takes is bounded, whatever the number of clients and the model's
size. On a CPU several blocks are worked on at once, of which each has the same bits
however many cores there are. Results on the CPU are made in ``files.scratch``, where
they may be larger than memory.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import islice
from typing import TypeVar, cast

import torch
from torch import Tensor

from hpcfl.files import heartbeat, scratch
from hpcfl.rows import pinned

Found = TypeVar("Found")
BLOCK_FLOATS = 1 << 17  # of float64 in a block: 1 MB, which stays in a core's cache
GPU_BLOCK_FLOATS = 1 << 25  # 256 MB, which keep a GPU busy
# of ‖a‖² + ‖b‖²; where ‖a − b‖² is less, products would leave fewer than twelve digits
# of it
CLOSE = 0.01
HELD = 1 << 27  # the most bytes of blocks' results that wait to be taken
_device = torch.device("cpu")
_cores = 1


def on(device: torch.device, cores: int = 1) -> None:
    """From now on ``device`` works on the blocks of matrices that lie on the CPU.

    cores: how many of these blocks may be worked on at once where that is the CPU.
    """
    global _device, _cores
    _device, _cores = device, max(1, cores)


def place() -> tuple[torch.device, int]:
    """Return the arguments of the last call of ``on``."""
    return _device, _cores


def mix(matrix: Tensor, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``matrix @ rows``, computed in float64: ``[m, n] · [n, width]`` gives ``[m,
    width]``.

    dtype: of the result; by default that of ``rows``.
    """
    return _product(torch.matmul, matrix, rows, dtype or rows.dtype)


def combine(matrix: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """``mix`` in a fixed order: a row of the result has the same bits whatever other
    rows ``matrix`` has.

    They are the same on every device, too. A library's product may add in another order
    where the matrices have another shape, but is some four times as fast.
    """
    return _product(_in_order, matrix, rows, dtype)


def by_lane(matrix: Tensor, rows: Tensor) -> Tensor:
    """``matrix @ rows`` in their own type, where each row of ``matrix`` is a lane's in
    local training.

    On a CPU it is computed row by row, so that a lane's bits do not depend on the lanes
    beside it. On a GPU, where the same bits are promised for the same lanes only, it is
    one product, which reads ``rows`` once.
    """
    if matrix.is_cuda:
        return matrix @ rows
    return torch.stack([row @ rows for row in matrix])


def average(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted mean ``[width]`` of ``rows`` [n, width]; the weights [n] must sum to
    one.
    """
    return mix(weights[None], rows)[0]


def row_sums(rows: Tensor) -> Tensor:
    """The sum of each row of ``rows`` [n, width], ``[n]``, whose bits do not depend on
    the rows beside it.

    torch adds up a single long row in pieces on ``runtime.threads`` threads, and each
    of several rows on one; so a single row is added up beside a copy of itself.
    """
    if len(rows) == 1 and rows.device.type == "cpu":
        return torch.cat([rows, rows]).sum(dim=1)[:1]
    return rows.sum(dim=1)


def picked(rows: Tensor, positions: Tensor) -> Tensor:
    """A copy of the rows at ``positions`` [n]."""
    return torch.index_select(rows, 0, positions, out=_empty(rows, len(positions)))


def replaced(rows: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """A copy of ``rows`` [M, width] with ``new`` [n, width] at the ascending
    ``positions`` [n].

    If these are all of the rows, it is ``new`` itself.
    """
    if len(positions) == len(rows):
        return new
    copy = _empty(rows, len(rows)).copy_(rows)
    return copy.index_copy_(0, positions, new)


def repeated(row: Tensor, count: int) -> Tensor:
    """The same row [width] for every client, ``[count, width]``."""
    return _empty(row[None], count).copy_(row)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[m, n]``, float64, from ``rows`` [m, width] to ``others``
    [n, width].

    They are computed from differences: the Gram expansion ‖a‖² + ‖b‖² − 2ab loses every
    digit for nearly equal models (methods-1.md §2).
    """

    def squares_of(left: Tensor, right: Tensor) -> Tensor:
        return _block_distances(left, right).square()

    return total(squares_of, rows, others).sqrt()


def distances_within(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``distances(rows[first], rows[second])`` for positions [m] and [n], without
    copies of whole rows.

    They follow from products, which take half the time of differences: ‖a − b‖² = ‖a‖²
    + ‖b‖² − 2ab, where a and b are counted from the mean of all rows in question. Pairs
    that are close together, measured by these a and b, are computed from differences
    all the same.
    """
    chosen, place = torch.unique(torch.cat([first, second]), return_inverse=True)

    def products_of(block: Tensor) -> Tensor:
        centred = block[chosen].double()
        centred -= centred.mean(dim=0)
        return centred @ centred.T

    products = total(products_of, rows)
    sizes = products.diagonal()[:, None] + products.diagonal()
    squares = (sizes - 2 * products).fill_diagonal_(0)
    close = squares < CLOSE * sizes.fill_diagonal_(0)
    near = (close | close.T).any(dim=1).nonzero()[:, 0]
    if len(near):

        def exact_squares_of(block: Tensor) -> Tensor:
            close_rows = block[chosen[near]]
            return _block_distances(close_rows, close_rows).square()

        exact = total(exact_squares_of, rows)
        pairs = near[:, None], near
        squares[pairs] = exact.where(close[pairs], squares[pairs])
    return squares.sqrt()[place[: len(first), None], place[len(first) :]]


def total(part: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """The sum of ``part(*blocks)`` over blocks of columns.

    part: it may run in several threads at once, and so changes nothing that is not its
        own.
    matrices: ``[n, width]``, or rows ``[width]``, of each of which ``part`` gets the
        same columns.
    """
    device = _where(matrices[0])
    width = matrices[0].shape[-1]
    rows = sum(len(matrix) for matrix in matrices if matrix.dim() > 1)

    def work(columns: slice) -> Tensor:
        return part(
            *(pinned.on_device(matrix[..., columns], device) for matrix in matrices)
        )

    parts = on_all_cores(work, blocks(width, rows, device), device)
    return cast(Tensor, sum(parts)).to(matrices[0].device)


def _product(
    multiply: Callable[[Tensor, Tensor], Tensor],
    matrix: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """``multiply(matrix, rows)`` of matrices in float64, rounded once to ``dtype``."""
    device = _where(rows)
    # Doubled where they are worked on: half as much travels, and the host converts
    # nothing.
    matrix = matrix.to(device).double()
    products = _empty(rows, len(matrix), dtype)

    def work(columns: slice) -> None:
        block = pinned.on_device(rows[:, columns], device).double()
        product = multiply(matrix, block)
        if product.device != products.device:
            product = pinned.on_host(product.to(dtype))
        products[:, columns] = product  # rounded while it is copied

    cuts = blocks(rows.shape[1], sum(matrix.shape), device)
    for _ in on_all_cores(work, cuts, device):
        pass
    return products


def on_all_cores(
    work: Callable[[slice], Found], cuts: Iterator[slice], device: torch.device
) -> Iterator[Found]:
    """What ``work`` gives for each of the cuts, in their order; on a CPU several are
    under way at once.

    So many that their results take ``HELD`` bytes at most, if they are as large as the
    first one. In a thread of its own ``work`` meets none of the caller's blocks such as
    ``torch.no_grad``.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    several = device.type == "cpu" and _cores > 1 and in_main_thread
    at_once = 1
    for columns in islice(cuts, 1):
        first = work(columns)
        yield first
        if several:
            size = first.nbytes if isinstance(first, Tensor) else 0
            # one more than cores, so that none waits for the caller
            at_once = min(_cores + 1, HELD // max(1, size))
    if at_once < 2:
        yield from map(work, cuts)
        return
    pool = _pool(_cores, torch.get_num_threads())
    under_way: deque[Future[Found]] = deque()
    try:
        for columns in cuts:
            under_way.append(pool.submit(work, columns))
            if len(under_way) == at_once:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:  # where one has failed, the others do not go on behind the caller's back
        wait([future for future in under_way if not future.cancel()])


@cache
def _pool(cores: int, threads: int) -> ThreadPoolExecutor:
    """What works on blocks, each by operations that take so many ``threads``."""
    # A thread keeps the number that it begins with, and products of another one may
    # have other bits.
    return ThreadPoolExecutor(cores, "blocks", lambda: torch.set_num_threads(threads))


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _in_order(matrix: Tensor, rows: Tensor) -> Tensor:
    """``matrix @ rows``, of which every product is rounded and then added, in the order
    of ``rows``.

    Not by ``addcmul``, which rounds both at once, but not in every place.
    """
    total = matrix[:, :1] * rows[0]
    product = torch.empty_like(total)
    for weights, row in zip(matrix.T[1:, :, None], rows[1:], strict=True):
        total += torch.mul(weights, row, out=product)
    return total


def _block_distances(left: Tensor, right: Tensor) -> Tensor:
    """Distances [m, n], float64, never by a matrix product, which would be the Gram
    expansion.
    """
    return torch.cdist(
        left.double(), right.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )


def _where(rows: Tensor) -> torch.device:
    """The device that works on blocks of these rows."""
    return _device if rows.device.type == "cpu" else rows.device


def _empty(like: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """``count`` rows of the width and device of ``like``, with any values; of its type
    or of ``dtype``.
    """
    shape = [count, like.shape[1]]
    dtype = dtype or like.dtype
    if like.device.type == "cpu":
        return scratch.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=like.device)


def blocks(
    width: int, rows: int, device: torch.device, floats: int | None = None
) -> Iterator[slice]:
    """Cuts of ``width`` columns into blocks of so many rows that are as large as suits
    the device.

    A heartbeat is sent whenever another one is asked for.

    floats: how many numbers of a block suit the CPU, instead of BLOCK_FLOATS.
    """
    in_block = GPU_BLOCK_FLOATS
    if device.type == "cpu":
        in_block = floats or BLOCK_FLOATS
    step = max(1, in_block // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, start + step)
        heartbeat.beat()  # rows that lie in files may take long to be read
