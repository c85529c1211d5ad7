"""Training on the server, of a model or of single tensors."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients.execution import choose_kernel
from hpcfl.clients.fleet import Fleet, Scoring
from hpcfl.clients.losses import CROSS_ENTROPY, Tensors
from hpcfl.clients.resources import Resources, Stopwatch
from hpcfl.clients.samples import Assigned, Samples
from hpcfl.clients.setup import Setup
from hpcfl.data.datasets import Dataset
from hpcfl.experiment.sections import Training
from hpcfl.files import heartbeat
from hpcfl.rows import randomness
from hpcfl.rows.layout import lay_out_buffers, lay_out_parameters, make_row


def fit(
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    classes: int,
    training: Training,
    seed: int,
    round: int,
) -> Tensor:
    """Train a new model with cross-entropy and return its row ``[P]``.

    The initial parameters and the order of samples are keyed by (seed, round).

    Args:
        build: function that returns a new model.
        x: samples [samples, …].
        y: labels [samples].
        classes: number of classes.
        training: settings of the training.
        seed, round: keys of the random draws.
    """
    with randomness.seeded(seed, "synthetic", round):
        module = build()
    device = x.device
    dataset = Dataset("synthetic", x, y, classes, scale=1.0, mean=(0.0,), std=(1.0,))
    assigned = Assigned(train=[np.arange(len(y))], test=[np.zeros(0, np.int64)])
    samples = Samples(dataset, [0], assigned, device)
    setup = Setup(
        layout=lay_out_parameters(module),
        class_counts=samples.counts(0)[None],
        rounds=round,
        seed=seed,
        build=build,
        training=training,
    )
    resources = Resources(
        setup=setup,
        samples=samples,
        kernel=choose_kernel(module.to(device), device, 1),
        buffers=lay_out_buffers(module),
        device=device,
        stopwatch=Stopwatch(),
    )
    fleet = Fleet(
        ids=np.array([0]),
        state={},
        class_counts=setup.class_counts,
        rounds=np.array([round]),
        scoring=Scoring(is_due=False),
        loss=CROSS_ENTROPY,
        resources=resources,
    )
    return fleet.train(make_row(setup.layout, module), phase="synthetic")[0]


def descend(
    start: Tensors,
    loss: Callable[[Tensors], Tensor],
    lr: float,
    steps: int,
) -> Tensors:
    """Return tensors by name after ``steps`` steps of plain gradient descent.

    Args:
        start: initial tensors by name, which do not change.
        loss: function of these tensors that returns a scalar.
        lr: learning rate.
        steps: number of steps.
    """
    everything = torch.arange(0)  # placeholder for a batch, which the loss ignores
    return descend_by_batches(
        start, lambda free, _: loss(free), lr, [everything] * steps
    )


def descend_by_batches(
    start: Tensors,
    loss: Callable[[Tensors, Tensor], Tensor],
    lr: float,
    batches: Iterable[Tensor],
) -> Tensors:
    """Return tensors by name after one step of gradient descent for each batch.

    Args:
        start: initial tensors by name, which do not change.
        loss: function of the tensors and a batch that returns a scalar.
        lr: learning rate.
        batches: positions of samples, such as from ``draw_batches``.
    """
    current = {name: tensor.clone() for name, tensor in start.items()}
    for batch in batches:
        leaves = {name: tensor.requires_grad_() for name, tensor in current.items()}
        gradients = torch.autograd.grad(loss(leaves, batch), list(leaves.values()))
        current = {
            name: (leaf - lr * gradient).detach()
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        }
        heartbeat.beat()
    return current


def draw_batches(
    setup: Setup, count: int, epochs: int, *key: int | str
) -> Iterator[Tensor]:
    """Yield the positions of mini-batches, in a new order in each epoch.

    Args:
        setup: setup that has the size of mini-batches and the seed.
        count: number of samples.
        epochs: number of epochs.
        key: key of the orders.
    """
    size = setup.training.batch_size
    for epoch in range(epochs):
        order = randomness.permutation(count, setup.seed, "server batches", *key, epoch)
        for start in range(0, count, size):
            yield torch.from_numpy(order[start : start + size])
