"""Training of the output layer on features that are computed once.

If only the head is trained, the frozen layers below give a sample the same features in
every epoch. The features are computed once for a training, in the same blocks as
scores. A client's features therefore depend only on its own samples. The head is then
trained on features instead of samples. A head is dense, so a CPU trains the heads of
many clients side by side, whereas models with convolutions train one client at a time.

A model declares its head by ``head`` and ``features`` (``hpcfl/models``). Layers and
losses are plain Python. Any of them may draw random numbers or read the whole
mini-batch, and no attribute declares it. Therefore this module compares the torch
operators that run on an example (``features_suffice``). It also calls the loss with
``Features`` instead of samples (``reads_features_alone``): a loss that needs the
samples fails on the example, and its head is trained on samples.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients import outputs
from hpcfl.clients.execution import OperatorObserver
from hpcfl.clients.losses import (
    Batch,
    Features,
    FrozenMode,
    Lane,
    Loss,
    Tensors,
    identify_function,
    set_modes,
)
from hpcfl.clients.resources import Models, Resources
from hpcfl.models import parts


def can_use_features(
    resources: Resources,
    names: list[str],
    loss: Loss,
    variables: Tensors,
    frozen_mode: FrozenMode,
) -> bool:
    """Return whether training ``names`` on features equals training on samples.

    Neither the loss nor the forward pass may use the samples in another way than
    through features. The layers below the features may not draw random numbers or
    depend on the mini-batch.

    Args:
        resources: model and samples of the rank.
        names: trained parameters, all above the features.
        loss: loss of one client.
        variables: tensors that the loss reads as ``lane.NAME``, ``[n, …]`` by name.
        frozen_mode: mode of the layers without trained parameters.
    """
    head, samples = resources.head, resources.samples
    assert head is not None
    key = frozen_mode, *names
    if key not in head.sufficient:
        # Batch norm needs two samples.
        x, _ = samples.take(torch.zeros(2, dtype=torch.int64))
        head.sufficient[key] = features_suffice(
            resources.kernel.module, x, names, frozen_mode
        )
    if not head.sufficient[key]:
        return False
    known = *names, identify_function(loss)
    if known not in head.readable:
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        reads = reads_features_alone(resources, head.kernel.module, loss, lane)
        head.readable[known] = loss, reads
    return head.readable[known][1]


def reads_features_alone(
    resources: Resources, head: nn.Module, loss: Loss, lane: Lane
) -> bool:
    """Return whether a loss can be computed from features and the layers above them.

    The loss is called with the features of one sample, repeated twice.

    Args:
        resources: model and samples of the rank.
        head: layers above the features.
        loss: loss of one client.
        lane: variables of one client.
    """
    x, y = resources.samples.take(torch.zeros(2, dtype=torch.int64))
    with torch.no_grad():
        features = parts(resources.kernel.module.eval()).features(x)
    features = features.to(next(head.parameters()))
    with torch.random.fork_rng():
        try:
            loss(head.train(), Batch(Features(features), y), lane)
        except Exception:
            # A loss with an error fails again on samples, with its own message.
            return False
    return True


def features_suffice(
    module: nn.Module,
    x: Tensor,
    names: list[str],
    frozen_mode: FrozenMode = "evaluation",
) -> bool:
    """Return whether features can replace samples while ``names`` are trained.

    In training mode the model must call the operators of its features in evaluation
    mode, without random numbers, and then the operators of its head. An active dropout
    layer, or batch norm with statistics of the mini-batch, makes a difference.

    Args:
        module: model of one client.
        x: two samples as model inputs, [2, *shape].
        names: trained parameters.
        frozen_mode: mode of the layers without trained parameters.
    """
    module = copy.deepcopy(module)  # the forward pass may update statistics
    model = parts(module)
    with torch.random.fork_rng():
        set_modes(module, names, frozen_mode)
        whole, _ = _list_calls(module, x)
        module.eval()
        below, features = _list_calls(model.features, x)
        set_modes(module, names, frozen_mode)
        above, _ = _list_calls(model.head, features)
    draws = [torch.Tag.nondeterministic_seeded in call.tags for call, _ in below]
    return whole == below + above and not any(draws)


@torch.no_grad()
def _list_calls(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[list[tuple[Any, list[str]]], Tensor]:
    """Return the operators of ``function(x)`` with plain arguments, and its result.

    Tensors among the arguments are left out.
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


def compute_features(
    resources: Resources, models: Models, pools: list[np.ndarray]
) -> tuple[Resources, list[np.ndarray]]:
    """Compute the features of the lanes' samples once.

    Args:
        resources: resources of the rank.
        models: models of the L lanes.
        pools: positions of each lane's samples among the rank's samples.

    Returns:
        Resources that train heads on the features, and the positions of each lane's
        features among them.
    """
    assert resources.head is not None
    features = outputs.compute_outputs(resources, models, pools, _extract_features)
    index = torch.from_numpy(np.concatenate(pools)).to(resources.device)
    samples = resources.samples.replace_samples(
        torch.cat(features), resources.samples.y[index]
    )
    starts = np.cumsum([0, *map(len, pools)]).tolist()
    return (
        replace(resources, samples=samples, kernel=resources.head.kernel),
        [np.arange(start, stop) for start, stop in pairwise(starts)],
    )


def copy_heads(resources: Resources, rows: Tensor, index: Tensor) -> Tensors:
    """Copy the tensors above the features of some models, ``[L, *shape]`` by name.

    Args:
        resources: resources of the rank.
        rows: models ``[n, P]``.
        index: positions [L] of the rows to copy.
    """
    layout = resources.setup.layout
    below = layout.list_members(("body",))
    return {
        name: view.index_select(0, index)
        for name, view in layout.split(rows).items()
        if name not in below
    }


def group_by_features(
    resources: Resources, order: list[int], pools: list[np.ndarray]
) -> list[list[int]]:
    """Group clients so that the features of a group take at most ``HeadKernel.memory``.

    A client with more features forms a group of its own.
    """
    assert resources.head is not None
    model = resources.kernel.module.eval()
    with torch.no_grad():
        first = torch.zeros(1, dtype=torch.int64, device=resources.device)
        features = _extract_features(model, resources.samples.take(first)[0], None)
    model.train()
    groups: list[list[int]] = [[]]
    held = 0
    for position in order:
        of_client = len(pools[position]) * features.nbytes
        held += of_client
        if groups[-1] and held > resources.head.memory:
            groups.append([])
            held = of_client
        groups[-1].append(position)
    return groups


def _extract_features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    return parts(model).features(x)
