"""The output layer trained on features that are computed once.

Where only the head is trained, the frozen layers below give a sample the same features
in every epoch. They are computed once a training, in the blocks in which scores are
computed, so that a client's features depend on its own samples alone; then the head is
trained on features instead of samples. The head is dense: clients train it side by side
on a CPU too, where convolutions run one client after the other.

A model says by ``head`` and ``features`` what its head is (``hpcfl/models``). Its layers
and losses are plain Python, which may draw numbers or look at a mini-batch in any
function, and no attribute says so. Therefore torch's operators are compared on an
example. A loss is given ``Features`` in place of samples: one that needs the samples
themselves fails on the example, and is trained on samples.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients.execution import OperatorObserver
from hpcfl.clients.losses import (
    Batch,
    Features,
    Frozen,
    Lane,
    Loss,
    Tensors,
    function_key,
    train_mode,
)
from hpcfl.clients.resources import Attempt, Resources
from hpcfl.models import parts


def can_use_features(
    resources: Resources,
    names: list[str],
    loss: Loss,
    variables: Tensors,
    frozen: Frozen,
) -> bool:
    """Return whether training the parameters ``names`` on features equals training them
    on samples.

    Neither the loss nor the forward pass may see the samples in another way; below the
    features nothing may be drawn, and nothing may depend on the mini-batch.

    Args:
        names: parameters above the features.
        variables: what the loss reads as ``lane.NAME``, ``[n, …]`` by name.
        frozen: the mode of layers of which nothing is trained.
    """
    head, samples = resources.head, resources.samples
    assert head is not None
    key = frozen, *names
    if key not in head.fits:
        # Batch norm takes no single sample.
        x, _ = samples.take(torch.zeros(2, dtype=torch.int64))
        head.fits[key] = features_suffice(resources.kernel.module, x, names, frozen)
    if not head.fits[key]:
        return False
    known = *names, function_key(loss)
    if known not in head.losses:
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        reads = reads_features_alone(resources, head.kernel.module, loss, lane)
        head.losses[known] = loss, reads
    return head.losses[known][1]


def reads_features_alone(
    resources: Resources, head: nn.Module, loss: Loss, lane: Lane
) -> bool:
    """Return whether a loss can be computed from features and the layers above them,
    here from those of one sample, twice.
    """
    x, y = resources.samples.take(torch.zeros(2, dtype=torch.int64))
    with torch.no_grad():
        features = parts(resources.kernel.module.eval()).features(x)
    features = features.to(next(head.parameters()))
    with torch.random.fork_rng():
        try:
            loss(head.train(), Batch(Features(features), y), lane)
        except Exception:
            # Trained on samples, a loss that is wrong fails again and says why.
            return False
    return True


def features_suffice(
    module: nn.Module, x: Tensor, names: list[str], frozen: Frozen = "evaluation"
) -> bool:
    """Return whether a model's features stand for its samples while ``names`` are
    trained.

    In training the model must call the operators of its features in evaluation mode,
    none of which draws random numbers, and then those of its head. A dropout that is
    on, or batch norm that takes the mini-batch's statistics, makes a difference.

    Args:
        x: two samples as the model takes them, [2, *shape].
        frozen: the mode of layers of which nothing is trained.
    """
    module = copy.deepcopy(module)  # statistics may move
    model = parts(module)
    with torch.random.fork_rng():
        train_mode(module, names, frozen)
        whole, _ = _list_calls(module, x)
        module.eval()
        below, features = _list_calls(model.features, x)
        train_mode(module, names, frozen)
        above, _ = _list_calls(model.head, features)
    draws = [torch.Tag.nondeterministic_seeded in call.tags for call, _ in below]
    return whole == below + above and not any(draws)


@torch.no_grad()
def _list_calls(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[list[tuple[Any, list[str]]], Tensor]:
    """Return the operators that compute a function of ``x``, with their arguments but
    for tensors, and its result.
    """
    calls: list[tuple[Any, list[str]]] = []

    def note(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [str(value) for value in (*args, *kwargs.items()) if _is_plain(value)]
        calls.append((operator, given))

    with OperatorObserver(note):
        found = function(x)
    return calls, found


def _is_plain(value: Any) -> bool:
    """Return whether an argument holds no tensor."""
    parts_of_value = value if isinstance(value, tuple | list) else [value]
    return not any(isinstance(part, Tensor) for part in parts_of_value)


def attempts(
    resources: Resources, order: list[int], pools: list[np.ndarray]
) -> Iterator[Attempt]:
    """Yield attempts as ``Resources.attempts`` does, each for as many heads as there is
    room for the features of.

    pools: each client's positions among the rank's samples.
    """
    assert resources.head is not None
    with_heads = replace(resources, kernel=resources.head.kernel)
    for group in _group_by_memory(resources, resources.head.memory, order, pools):
        yield from with_heads.attempts(group)


def compute_features(
    resources: Resources, rows: Tensor, buffers: Tensor, pools: list[np.ndarray]
) -> tuple[Resources, list[np.ndarray]]:
    """Compute the features of the lanes' samples once. Return resources that train
    heads on them, and each lane's positions among them.

    rows: ``[L, P]``. buffers: ``[L, B]``. pools: each lane's positions among the rank's
    samples.
    """
    assert resources.head is not None
    features = resources.compute_outputs(rows, buffers, pools, _features)
    index = torch.from_numpy(np.concatenate(pools)).to(resources.device)
    samples = resources.samples.replaced(
        torch.cat(features), resources.samples.y[index]
    )
    starts = np.cumsum([0, *map(len, pools)]).tolist()
    return (
        replace(resources, samples=samples, kernel=resources.head.kernel),
        [np.arange(start, stop) for start, stop in pairwise(starts)],
    )


def copy_heads(resources: Resources, rows: Tensor, lanes: Tensor) -> Tensors:
    """Copy the tensors above the features of some models, ``[L, *shape]`` by name.

    rows: ``[n, P]``, of which those at positions ``lanes`` [L] are copied.
    """
    layout = resources.setup.layout
    below = layout.members(("body",))
    return {
        name: view.index_select(0, lanes)
        for name, view in layout.split(rows).items()
        if name not in below
    }


def _group_by_memory(
    resources: Resources, memory: float, order: list[int], pools: list[np.ndarray]
) -> list[list[int]]:
    """Return clients in groups whose features take at most ``memory`` bytes.

    A client with larger features is a group of its own.
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


def _features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    return parts(model).features(x)
