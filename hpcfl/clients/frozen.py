"""The output layer on its own: trained on features that are computed once, and its
gradients class by class.

Where only the head is trained, the frozen layers below give a sample the same features
in every epoch. They are computed once a training, in the blocks in which scores are
computed, so that a client's features depend on its own samples alone; then the head is
trained on features instead of samples. The head is dense: clients train it side by side
on a CPU too, where convolutions run one client after the other.

Whether features do stand for samples is read off the loss, which says so
(``losses.reads_features``), and off the model's operators, never off numbers.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcfl.clients import scoring
from hpcfl.clients.execution import choose
from hpcfl.clients.losses import (
    Frozen,
    Loss,
    Tensors,
    sees_features_alone,
    train_mode,
)
from hpcfl.clients.resources import Attempt, HeadKernel, Resources
from hpcfl.files import heartbeat
from hpcfl.models import parts
from hpcfl.rows.layout import Layout

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
    ``features``.

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


def on_features(module: nn.Module) -> nn.Module:
    """Make a module take features as samples: ``features(x)`` is ``x`` from now on.
    Return the module.
    """
    vars(module)["features"] = lambda x: x
    return module


def fits(
    resources: Resources, names: list[str], loss: Loss, frozen: Frozen = "evaluation"
) -> bool:
    """Return whether training the parameters ``names`` on features equals training them
    on samples.

    They must lie above the features, and neither the loss nor the forward pass may see
    the samples in another way; below the features nothing may be drawn, and nothing may
    depend on the mini-batch.

    Args:
        frozen: the mode of layers of which nothing is trained.
    """
    below = resources.setup.layout.members(("body",))
    if resources.head is None or resources.samples.augment or set(names) & set(below):
        return False
    if not sees_features_alone(loss):
        return False
    known, key = resources.head.fits, (frozen, *names)
    if key not in known:
        x, _ = resources.samples.take(torch.arange(1))
        # Batch norm takes no single sample.
        x = torch.cat([x, x])
        known[key] = stand_for(resources.kernel.module, x, names, frozen)
    return known[key]


def stand_for(
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
    if not isinstance(getattr(module, "head", None), nn.Module):
        return False
    module = copy.deepcopy(module)  # statistics may move
    train_mode(module, names, frozen)
    training = _Operators.observe(module, x)
    through = _goes_through_features(module, x)
    evaluation = _Operators.observe(module.eval(), x)
    return through and training.calls == evaluation.calls and not training.random


class _Operators(TorchDispatchMode):
    """Notes the operators that are called, with their arguments but for tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, list[Any]]] = []
        self.random = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [
            value
            for value in tree_leaves((args, kwargs or {}))
            if not isinstance(value, Tensor)
        ]
        self.calls.append((operator, given))
        self.random |= torch.Tag.nondeterministic_seeded in operator.tags
        return operator(*args, **(kwargs or {}))

    @classmethod
    @torch.no_grad()
    def observe(cls, module: nn.Module, x: Tensor) -> "_Operators":
        """Return the operators that compute a model's features of ``x``."""
        operators = cls()
        with operators:
            _features(module, x, None)
        return operators


@torch.no_grad()
def _goes_through_features(module: nn.Module, x: Tensor) -> bool:
    """Return whether ``module(x)`` is ``head(features(x))``, judged by the identity of
    their tensors.
    """
    model = parts(module)
    features_of = model.features
    taken: list[Any] = []
    given: list[Any] = []

    def features(x: Tensor) -> Tensor:
        taken.append(x)
        given.append(features_of(x))
        result: Tensor = given[-1]
        return result

    def head(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        taken.extend(arguments)
        given.append(output)

    vars(module)["features"] = features
    watched = module.get_submodule("head").register_forward_hook(head)
    try:
        given.append(module(x))
    finally:
        watched.remove()
        del vars(module)["features"]
    if len(taken) != 2 or len(given) != 3:
        return False
    sample, entered = taken
    computed, logits, output = given
    return sample is x and entered is computed and output is logits


def attempts(
    resources: Resources, order: list[int], pools: list[np.ndarray]
) -> Iterator[Attempt]:
    """Yield attempts as ``Resources.attempts`` does, each for as many heads as there is
    room for the features of.

    pools: each client's positions among the rank's samples.
    """
    assert resources.head is not None
    with_heads = replace(resources, kernel=resources.head.kernel)
    for group in _groups(resources, resources.head.memory, order, pools):
        yield from with_heads.attempts(group)


def run_once(
    resources: Resources, rows: Tensor, buffers: Tensor, pools: list[np.ndarray]
) -> tuple[Resources, list[np.ndarray]]:
    """Compute the features of the lanes' samples once. Return resources that train
    heads on them, and each lane's positions among them.

    rows: ``[L, P]``. buffers: ``[L, B]``. pools: each lane's positions among the rank's
    samples.
    """
    assert resources.head is not None
    blocks: dict[int, list[Tensor]] = {}  # of features, by lane

    def run_chunk(chunk: list[int]) -> None:
        lanes = torch.tensor(chunk, device=resources.device)
        blocks.update({i: [] for i in chunk})  # a second attempt begins anew
        for part, output, *_ in scoring.outputs(
            kernel=resources.kernel,
            tensors=resources.stacked(rows, buffers, lanes),
            samples=resources.samples,
            pools=[pools[i] for i in chunk],
            variables={},
            function=_features,
        ):
            for lane, features in zip(part, output, strict=True):
                blocks[chunk[lane]].append(features)
        heartbeat.beat()

    for attempt in resources.attempts(scoring.by_blocks(pools)):
        with attempt:
            run_chunk(attempt.clients)
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


def _features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    return parts(model).features(x)


def outer_products(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """p ⊗ (φ, 1) for each sample, ``[batch, K·(d + 1)]``: its gradient without the
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
    """Gradients ``[n, K, P_h]`` of the classes' mean cross-entropy from class means of
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
