"""Scoring: evaluation of clients' models on their own samples, in large blocks.

``map_chunks`` evaluates the models of a fleet chunk by chunk, for ``sum_scores`` and
for ``outputs.py``. The clients of a chunk process their whole blocks in lockstep;
clients without further blocks drop out. Then their remaining samples follow, grouped by
size. The size of a block depends only on the client's own pool.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.execution import Kernel
from hpcfl.clients.losses import Predict, Tensors, index_lanes
from hpcfl.clients.resources import Models, Resources
from hpcfl.clients.samples import Samples, pad_positions
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.files import heartbeat
from hpcfl.rows import mixing
from hpcfl.rows.declared import describe_form
from hpcfl.scores.base import Block, Score

SMALLEST = 16  # minimum padded size of a last block; smaller ones are not faster
# Number of samples per client and block. It is fixed, so that a client's scores do not
# depend on other clients.
BLOCK = 128

# Lanes, outputs [a, b, …], y [a, b] and mask, bool [a, b], from ``compute_blocks``.
Blocks = Iterator[tuple[list[int], Tensor, Tensor, Tensor]]
# Sums by name of the score, float64 [n, width of the score], on the CPU.
Sums = dict[str, Tensor]
Found = TypeVar("Found")


def sum_scores(
    resources: Resources,
    models: Models,
    ids: np.ndarray,
    on: str,
    predict: Predict,
    scores: Mapping[str, Score],
) -> Sums:
    """Return the sums of ``scores`` on each client's samples.

    Args:
        resources: kernel and samples of the rank.
        models: models of n clients.
        ids: client ids [n].
        on: name of a part of the samples in ``Samples.parts``.
        predict: function of (model, x, lane) that returns logits [batch, classes].
        scores: scores by name.
    """
    samples = resources.samples
    test_sets = np.arange(len(ids))
    if models.are_equal and on == "test":
        test_sets = samples.number_tests(ids.tolist())
    # A model that several clients test on the same samples is scored once. These
    # clients share one row, so the first rows serve for all of them.
    _, firsts, row = np.unique(test_sets, return_index=True, return_inverse=True)
    pools = [samples.parts[on][client] for client in ids[firsts].tolist()]

    def score(blocks: Blocks, chunk: list[int]) -> Sums:
        return score_chunk(blocks, len(chunk), samples.classes, scores)

    chunks, order = map_chunks(resources, models, pools, predict, score)
    return {
        name: torch.cat([sums[name] for sums in chunks])[order][row]
        for name in chunks[0]
    }


def map_chunks(
    resources: Resources,
    models: Models,
    pools: list[np.ndarray],
    function: Predict,
    reduce: Callable[[Blocks, list[int]], Found],
) -> tuple[list[Found], Tensor]:
    """Apply ``reduce`` to the outputs of n clients, chunk by chunk.

    Args:
        resources: kernel and samples of the rank.
        models: models of the clients; further models are not read.
        pools: positions of each client's samples among the rank's samples, n arrays.
        function: function of (model, x, lane).
        reduce: function of a chunk's blocks, from ``compute_blocks``, and the positions
            of its clients.

    Returns:
        The result of each chunk, and the position of each client in the concatenation
        of all chunks, [n].
    """
    results: list[Found] = []
    order = order_longest_first(pools)

    def run(chunk: list[int]) -> Found:
        index = torch.tensor(chunk, device=resources.device)
        variables = models.variables.items()
        blocks = compute_blocks(
            kernel=resources.kernel,
            tensors=resources.stack_models(models, index),
            samples=resources.samples,
            pools=[pools[position] for position in chunk],
            variables={name: value[index] for name, value in variables},
            function=function,
        )
        return reduce(blocks, chunk)

    for attempt in resources.kernel.attempt(order):
        with attempt as chunk:
            results.append(run(chunk))
            heartbeat.beat()
    return results, torch.tensor(order).argsort()


def order_longest_first(pools: list[np.ndarray]) -> list[int]:
    """Return positions in ``pools``, longest pool first.

    The first lanes of a chunk then still have whole blocks after other lanes have
    finished.
    """
    return sorted(range(len(pools)), key=lambda i: (-len(pools[i]), i))


def _pad_length(length: int) -> int:
    """Return the padded length of a pool.

    It has whole blocks and a power of two of at least ``SMALLEST``.

    The result depends only on the client's own pool.
    """
    rest = length % BLOCK
    if not rest:
        return length
    power_of_two = 1 << (rest - 1).bit_length()
    return length - rest + max(SMALLEST, power_of_two)


def _plan_blocks(
    pools: list[np.ndarray], pads: bool
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield lanes and their next positions [a, b]: whole blocks, then last ones.

    Last blocks are grouped by size.

    Positions are −1 in padding. If all pools are empty, one block without samples is
    yielded.

    Args:
        pools: positions of each lane's samples.
        pads: whether last blocks are padded.
    """
    lengths = [_pad_length(len(pool)) if pads else len(pool) for pool in pools]
    for start in range(0, max(lengths) - BLOCK + 1, BLOCK):
        stop = start + BLOCK
        lanes = [lane for lane, length in enumerate(lengths) if length >= stop]
        parts = [pools[lane][start:stop] for lane in lanes]
        yield lanes, pad_positions(parts, BLOCK)
    rests: dict[int, list[int]] = {}
    for lane, length in enumerate(lengths):
        size = length % BLOCK
        if size or not any(lengths):
            rests.setdefault(size, []).append(lane)
    for size, lanes in sorted(rests.items()):
        parts = [pools[lane][lengths[lane] - size :] for lane in lanes]
        yield lanes, pad_positions(parts, size)


def compute_blocks(
    kernel: Kernel,
    tensors: Tensors,
    samples: Samples,
    pools: list[np.ndarray],
    variables: Tensors,
    function: Predict,
) -> Blocks:
    """Evaluate ``function`` on the pools of a chunk of L clients, block by block.

    A lane's blocks are in the order of its pool. A serial lane's last block is not
    padded.

    Args:
        kernel: kernel that runs the models.
        tensors: parameters and buffers of the clients' models, ``[L, …]`` by name.
        samples: samples of the rank.
        pools: positions of each client's samples.
        variables: variables of the function, ``[L, …]`` by name.
        function: function of one client's (model, x, lane).

    Yields:
        For each block of b samples of ``a`` lanes: the lanes, the outputs ``[a, b,
            …]``, y [a, b], and a mask, bool [a, b], which is False in padding.
    """
    blocks = list(_plan_blocks(pools, kernel.widest > 1))
    numbers = np.concatenate([positions.ravel() for _, positions in blocks])
    # One transfer moves all positions to the device.
    on_device = mixing.move_to_device(torch.from_numpy(numbers), samples.device)
    parts = on_device.split([positions.size for _, positions in blocks])
    for (lanes, positions), index in zip(blocks, parts, strict=True):
        x, y = samples.take(index.clamp(min=0))
        x = x[None] if len(lanes) == 1 else x.view(*positions.shape, *x.shape[1:])
        chosen = index_lanes(lanes, samples.device)
        models = {name: tensor[chosen] for name, tensor in tensors.items()}
        values = {name: tensor[chosen] for name, tensor in variables.items()}
        output = kernel.predict(models, x, values, function)
        labels = y.view(positions.shape)
        mask = index.view(positions.shape) >= 0
        yield lanes, output, labels, mask


def add_rows(
    total: Tensor | None, lanes: list[int], part: Tensor, count: int
) -> Tensor:
    """Add ``part`` [a, …] to some rows of a sum.

    Args:
        total: sum [count, …]; None for zeros.
        lanes: rows to add to, ascending.
        part: values to add.
        count: number of rows of the sum.
    """
    total = part.new_zeros(count, *part.shape[1:]) if total is None else total
    total[index_lanes(lanes, part.device)] += part
    return total


def score_chunk(
    blocks: Blocks,
    clients: int,
    classes: int,
    scores: Mapping[str, Score],
) -> Sums:
    """Return the sums of ``scores`` over the blocks of a chunk.

    Args:
        blocks: blocks from ``compute_blocks`` with logits as outputs.
        clients: number of clients of the chunk.
        classes: number of classes.
        scores: scores by name.

    Raises:
        TypeError: Logits of a client are not [samples, classes].
        UserError: The sums of a score have another number of clients.
    """
    sums: Sums = {}
    for lanes, logits, y, mask in blocks:
        if logits.dim() != 3 or logits.shape[2] < classes:
            raise TypeError(
                f"predictions of a client have shape {list(logits.shape[1:])}; "
                f"expected [{logits.shape[1]}, {classes}], samples × classes"
            )
        block = Block(logits, y, mask, classes)
        # the largest of NaN and numbers is NaN, so such a sample would be of class 0
        diverged = (logits.isnan().any(dim=2) & mask).any(dim=1, keepdim=True)
        for name, metric in scores.items():
            found = metric.sums(block)
            with locate_score_errors(name, metric, "sums"):
                require_rows(found, len(lanes), "width")
            sums_of_block = found.double().masked_fill(diverged, torch.nan)
            sums[name] = add_rows(sums.get(name), lanes, sums_of_block, clients)
    widths = [part.shape[1] for part in sums.values()]
    # A single transfer waits for the device only once.
    on_host = torch.cat(list(sums.values()), dim=1).cpu()
    columns = on_host.split(widths, dim=1)
    return dict(zip(sums, columns, strict=True))


@contextmanager
def locate_score_errors(name: str, score: Score, function: str) -> Iterator[None]:
    """Convert an error in a block into a UserError with its place in the user's code.

    Args:
        name: name of the score.
        score: score.
        function: name of the score's function in the block.
    """
    try:
        yield
    except Exception as error:
        where = user_code.locate(error, type(score))
        raise UserError(
            f"{where}score '{name}' fails in '{function}': "
            f"{user_code.describe_error(error)}"
        ) from error


def require_rows(value: Tensor, clients: int, *widths: str) -> None:
    """Raise TypeError unless a score's function returns a row for each client.

    Args:
        value: result of the function.
        clients: number of clients.
        widths: names of the dimensions after the clients.
    """
    right = isinstance(value, Tensor) and value.dim() == 1 + len(widths)
    if not right or len(value) != clients:
        expected = ", ".join([str(clients), *widths])
        raise TypeError(
            f"it returns {describe_form(value)} for {clients} clients; expected "
            f"[{expected}]"
        )
