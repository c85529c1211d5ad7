"""The output layer on its own: trained on features that are computed once, and its
gradients class by class.

Where only the head is trained, the frozen layers below give a sample the same features
in every epoch. They are computed once a training, in the blocks in which scores are
computed, so that a client's features depend on its own samples alone; then the head is
trained on features instead of samples. The head is dense: clients train it side by side
on a CPU too, where convolutions run one client after the other.

A loss is then given ``Features`` in place of samples. One that needs the samples
themselves fails on an example, and is trained on samples.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients.execution import OperatorObserver, choose
from hpcfl.clients.losses import (
    Batch,
    Features,
    Frozen,
    HeadModel,
    Lane,
    Loss,
    Tensors,
    function_key,
    train_mode,
)
from hpcfl.clients.resources import Attempt, HeadKernel, Resources
from hpcfl.models import parts
from hpcfl.rows import constants
from hpcfl.rows.layout import Layout, of_parameters

FLOATS = 1 << 24  # of the models that train side by side on a CPU, 64 MB
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
    """Return a kernel that trains heads on features, or None for a model without
    ``features`` or with further tensors above them.

    lanes, replay: as for ``execution.choose``. memory: bytes that features may take.
    """
    has_head = isinstance(getattr(module, "head", None), nn.Module)
    if not has_head or not hasattr(module, "features"):
        return None
    layout = of_parameters(module)
    below = layout.members(("body",))
    above = [name for name in layout.names if name not in below]
    head = HeadModel(copy.deepcopy(module))
    constants.hold_part(head, module)
    if [name for name, _ in head.named_parameters()] != above:
        return None
    parameters = sum(parameter.numel() for parameter in module.parameters())
    most = max(1, FLOATS // parameters)
    return HeadKernel(choose(head, device, lanes, replay, most=most), memory / COPIES)


def can_use_features(
    resources: Resources,
    names: list[str],
    loss: Loss,
    variables: Tensors,
    frozen: Frozen = "evaluation",
) -> bool:
    """Return whether training the parameters ``names`` on features equals training them
    on samples.

    They must lie above the features, and neither the loss nor the forward pass may see
    the samples in another way; below the features nothing may be drawn, and nothing may
    depend on the mini-batch.

    Args:
        variables: what the loss reads as ``lane.NAME``, ``[n, …]`` by name.
        frozen: the mode of layers of which nothing is trained.
    """
    head, samples = resources.head, resources.samples
    if head is None or samples.augment:
        return False
    if set(names) & set(resources.setup.layout.members(("body",))):
        return False
    example = torch.arange(1)
    key = frozen, *names
    if key not in head.fits:
        x, _ = samples.take(example)
        # Batch norm takes no single sample.
        x = torch.cat([x, x])
        head.fits[key] = features_suffice(resources.kernel.module, x, names, frozen)
    if not head.fits[key]:
        return False
    known = *names, function_key(loss)
    if known not in head.losses:
        x, y = samples.take(example)
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        module = resources.kernel.module
        reads = reads_features_alone(module, head.kernel.module, x, y, loss, lane)
        head.losses[known] = loss, reads
    return head.losses[known][1]


def reads_features_alone(
    module: nn.Module,
    head: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Loss,
    lane: Lane,
) -> bool:
    """Return whether a loss can be computed from features and the layers above them.

    x, y: one sample, which the loss sees twice.
    """
    features = parts(module.eval()).features(torch.cat([x, x])).detach()
    features = features.to(next(head.parameters()))
    batch = Batch(Features(features), torch.cat([y, y]))
    with torch.random.fork_rng():
        try:
            loss(head.train(), batch, lane)
        except Exception:
            # Trained on samples, a loss that is wrong fails again and says why.
            return False
    return True


def features_suffice(
    module: nn.Module, x: Tensor, names: list[str], frozen: Frozen = "evaluation"
) -> bool:
    """Return whether a model's features stand for its samples while ``names`` are
    trained.

    Its forward pass must be the head of the features of the sample, and the features
    must be computed by the same operators when training and in evaluation mode, of
    which none draws random numbers. A dropout that is on, or batch norm that takes the
    mini-batch's statistics, makes a difference there.

    Args:
        x: two samples as the model takes them, [2, *shape].
        frozen: the mode of layers of which nothing is trained.
    """
    module = copy.deepcopy(module)  # statistics may move
    train_mode(module, names, frozen)
    training, draws = _operators(module, x)
    evaluation, _ = _operators(module.eval(), x)
    return training == evaluation and not draws and _is_head_of_features(module, x)


@torch.no_grad()
def _operators(module: nn.Module, x: Tensor) -> tuple[list[Any], bool]:
    """Return the operators that compute a model's features of ``x``, with their
    arguments but for tensors, and whether one draws random numbers.
    """
    calls: list[Any] = []
    draws: list[bool] = []

    def note(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [str(value) for value in (*args, *kwargs.items()) if _is_plain(value)]
        calls.append((operator, given))
        draws.append(torch.Tag.nondeterministic_seeded in operator.tags)

    with OperatorObserver(note):
        _features(module, x, None)
    return calls, any(draws)


def _is_plain(value: Any) -> bool:
    """Return whether an argument holds no tensor."""
    parts_of_value = value if isinstance(value, tuple | list) else [value]
    return not any(isinstance(part, Tensor) for part in parts_of_value)


@torch.no_grad()
def _is_head_of_features(module: nn.Module, x: Tensor) -> bool:
    """Return whether ``module(x)``, in evaluation mode, is ``head(features(x))``."""
    calls: list[tuple[tuple[Any, ...], Any]] = []

    def note(head: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        calls.append((arguments, output))

    watched = module.get_submodule("head").register_forward_hook(note)
    try:
        logits = module(x)
    finally:
        watched.remove()
    if len(calls) != 1 or calls[0][1] is not logits or len(calls[0][0]) != 1:
        return False
    return torch.equal(calls[0][0][0], _features(module, x, None))


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
    features = resources.outputs(rows, buffers, pools, _features)
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


def outer_products(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """Return p ⊗ (φ, 1) for each sample, ``[batch, K·(d + 1)]``: its gradient without the
    label's − e_y ⊗ (φ, 1).

    With φ a sample's features [d], p its probabilities [K] and y its class, ∂CE/∂head =
    (p − e_y) ⊗ (φ, 1). The mean over a class needs only the mean of p ⊗ (φ, 1), so that
    no sample's own gradient is ever kept.
    """
    features = parts(model).features(x)
    extended = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
    outer: Tensor = (
        parts(model).head(features).softmax(dim=1)[:, :, None] * extended[:, None]
    )
    return outer.flatten(1)


def gradients_from_means(outer: Tensor, layout: Layout) -> Tensor:
    """Return gradients ``[n, K, P_h]`` of the classes' mean cross-entropy from class means of
    ``outer_products``.

    outer: the class means ``[n, K, K·(d + 1)]``. The columns of the result are those of
    the head in a row: the weight, then the bias if there is one. (φ, 1) is the sum of
    the rows of p ⊗ (φ, 1), because p sums to one.
    """
    clients, classes, _ = outer.shape
    rows = outer.view(clients, classes, classes, -1)
    rows = rows - torch.eye(classes, device=rows.device)[:, :, None] * rows.sum(
        dim=2, keepdim=True
    )
    weight, bias = rows[..., :-1].flatten(2), rows[..., -1]
    return torch.cat([weight, bias], dim=2) if "head.bias" in layout.names else weight
