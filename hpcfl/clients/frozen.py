"""Frozen layers run once: where only the head is trained, the layers below give a
sample the same features in every epoch.

They are computed once a training, in the blocks in which scores are computed, so that a
client's features depend on its own samples alone; then the head is trained on features
instead of samples. The head is dense: clients train it side by side on a CPU too, where
convolutions run one client after the other.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients import scoring
from hpcfl.clients.execution import choose
from hpcfl.clients.losses import Batch, Loss, Tensors, identity
from hpcfl.clients.modules import on_features
from hpcfl.clients.resources import HeadKernel, Resources
from hpcfl.files import heartbeat
from hpcfl.models import parts
from hpcfl.rows import pinned

FLOATS = 1 << 24  # of the models that train side by side on a CPU, 64 MB
ROUNDING = 1e-4  # of the largest gradient
COPIES = (
    3  # of features at once: in blocks, a client's in one piece, all clients' in one
)


def head_kernel(
    module: nn.Module,
    device: torch.device,
    lanes: int | str,
    replay: bool,
    memory: float,
) -> HeadKernel | None:
    """What trains the heads of models like ``module`` on features; None for a model
    without ``features``.

    lanes, replay: as for ``execution.choose``. memory: bytes that features may take.
    """
    if not hasattr(module, "features"):
        return None
    parameters = sum(parameter.numel() for parameter in module.parameters())
    head = on_features(copy.deepcopy(module))
    return HeadKernel(
        choose(head, device, lanes, replay, most=max(1, FLOATS // parameters)),
        memory / COPIES,
    )


def fits(
    resources: Resources,
    rows: Tensor,
    buffers: Tensor,
    pool: np.ndarray,
    names: list[str],
    loss: Loss,
    variables: Tensors,
) -> bool:
    """Whether training the parameters ``names`` on features is training them on
    samples.

    They must lie above the features, and the loss may see the samples through these
    alone. Whether that is so is tried once for each loss, on two samples of one client
    with ``buffers`` [1, B]. The model is the initial one and not the client's: what
    comes out may not depend on how far a run has come, or a resumed run would have
    other bits. A trained model's gradients can be smaller than their own rounding.
    """
    below = resources.setup.layout.members(("body",))
    if resources.head is None or resources.samples.augment or set(names) & set(below):
        return False
    known, key = resources.head.fits, (identity(loss), *names)
    if key not in known:
        initial = resources.setup.initial().to(rows.dtype)
        rows = pinned.on_device(initial, resources.device)[None]
        known[key] = _same(resources, rows, buffers, pool[:2], names, loss, variables)
    return known[key]


def side_by_side(
    resources: Resources,
    order: list[int],
    pools: list[np.ndarray],
    work: Callable[[list[int]], None],
) -> None:
    """As ``Resources.side_by_side``, for heads: as many at once as there is room for
    the features of.

    pools: each client's positions among the rank's samples.
    """
    assert resources.head is not None
    of_heads = replace(resources, kernel=resources.head.kernel)
    for group in _groups(resources, resources.head.memory, order, pools):
        of_heads.side_by_side(group, work)


def run_once(
    resources: Resources, rows: Tensor, buffers: Tensor, pools: list[np.ndarray]
) -> tuple[Resources, list[np.ndarray]]:
    """What trains heads on the features of the lanes' samples, and each lane's
    positions among these.

    rows: ``[L, P]``. buffers: ``[L, B]``. pools: each lane's positions among the rank's
    samples.
    """
    assert resources.head is not None
    blocks: dict[int, list[Tensor]] = {}  # of features, by lane

    def run_chunk(chunk: list[int]) -> None:
        lanes = torch.tensor(chunk, device=resources.device)
        blocks.update({i: [] for i in chunk})  # a second attempt begins anew
        for part, output, *_ in scoring.outputs(
            resources.kernel,
            resources.stacked(rows, buffers, lanes),
            resources.samples,
            [pools[i] for i in chunk],
            {},
            _features,
        ):
            for lane, features in zip(part, output, strict=True):
                blocks[chunk[lane]].append(features)
        heartbeat.beat()

    resources.side_by_side(scoring.by_blocks(pools), run_chunk)
    features = [torch.cat(blocks[i])[: len(pool)] for i, pool in enumerate(pools)]
    index = torch.from_numpy(np.concatenate(pools)).to(resources.device)
    samples = resources.samples.replaced(
        torch.cat(features), resources.samples.y[index]
    )
    starts = np.cumsum([0, *map(len, pools)]).tolist()
    return (
        replace(resources, samples=samples, kernel=resources.head.kernel),
        [np.arange(start, stop) for start, stop in pairwise(starts)],
    )


def heads(resources: Resources, rows: Tensor, lanes: Tensor) -> Tensors:
    """Copies of what lies above the features in some models: tensors ``[L, *shape]`` by
    name.

    rows: ``[n, P]``, of which those at positions ``lanes`` [L] are copied.
    """
    layout = resources.setup.layout
    below = layout.members(("body",))
    return {
        name: view.index_select(0, lanes)
        for name, view in layout.split(rows).items()
        if name not in below
    }


def _groups(
    resources: Resources, memory: float, order: list[int], pools: list[np.ndarray]
) -> list[list[int]]:
    """Clients in groups whose features take so many bytes at most; one whose own take
    more is alone.
    """
    model = resources.kernel.module.eval()
    with torch.no_grad():
        first = torch.zeros(1, dtype=torch.int64, device=resources.device)
        features = _features(model, resources.samples.take(first)[0], None)
    model.train()
    groups: list[list[int]] = [[]]
    held = 0
    for position in order:
        of_client = len(pools[position]) * features.nbytes
        held += of_client
        if groups[-1] and held > memory:
            groups.append([])
            held = of_client
        groups[-1].append(position)
    return groups


def _same(
    resources: Resources,
    rows: Tensor,
    buffers: Tensor,
    pool: np.ndarray,
    names: list[str],
    loss: Loss,
    variables: Tensors,
) -> bool:
    """Whether both ways lead to the same gradients, up to rounding."""
    of_features, (positions,) = run_once(resources, rows, buffers, [pool])
    try:
        lanes = torch.zeros(1, dtype=torch.int64, device=resources.device)
        plain = _gradients(
            resources,
            resources.stacked(rows, buffers, lanes),
            pool,
            names,
            loss,
            variables,
        )
        other = _gradients(
            of_features,
            heads(resources, rows, lanes),
            positions,
            names,
            loss,
            variables,
        )
    except Exception:  # of a loss that reads the samples; if it is at fault itself, training will say so
        return False
    scale = torch.stack([gradient.abs().max() for gradient in plain]).max()
    for gradient, of_head in zip(plain, other, strict=True):
        if not ((gradient - of_head).abs() <= ROUNDING * scale).all():
            return False
    return True


def _gradients(
    resources: Resources,
    tensors: Tensors,
    pool: np.ndarray,
    names: list[str],
    loss: Loss,
    variables: Tensors,
) -> list[Tensor]:
    """The gradients of one lane's loss on a mini-batch, and the loss."""
    x, y = resources.samples.take(pool)
    session = resources.kernel.session(tensors, names, loss, variables=variables)
    batch = Batch(x[None], y[None])
    gradients, losses = session.gradients(slice(0, 1), batch, variables)
    return [*gradients.values(), losses]


def _features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    return parts(model).features(x)
