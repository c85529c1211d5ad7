"""The fleet: the clients of one rank that a round concerns; trains and scores them for the method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.communication.message import Pool
from hpcfl.fleet import head_gradients, scoring, training
from hpcfl.fleet.kernels import Loss, Predict, Tensors, at
from hpcfl.fleet.resources import Resources
from hpcfl.fleet.setup import Setup
from hpcfl.fleet.turn import Turn
from hpcfl.rows import randomness
from hpcfl.rows.layout import Group, Layout
from hpcfl.scores import loss as cross_entropy
from hpcfl.scores.base import Score

BUFFERS = "buffers."


@dataclass
class Fleet:
    """n clients for one call of a method's ``update``, ``observe`` or ``finish``.

    ``ids`` [n] ascending; ``state`` their private state, tensors ``[n, …]`` by name: assign new values and
    they are kept; ``counts`` [n, classes] training samples; ``round`` counts from 1. Rows are ``[n, P]``,
    or ``[P]`` for one model that all clients share. ``scores``: by column, the sums of each score.
    """

    ids: np.ndarray
    state: Tensors
    counts: Tensor
    round: int
    scored: bool
    loss: Loss
    resources: Resources
    scores: dict[str, scoring.Sums] = field(default_factory=dict)
    recorded: Tensors = field(default_factory=dict)
    losses: Tensor | None = None
    _phases: set[str] = field(default_factory=set)

    @property
    def setup(self) -> Setup:
        return self.resources.setup

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def learning_rate(self) -> float:
        """The local learning rate of this round, for a method's own steps."""
        return self.setup.learning_rate(self.round)

    @property
    def samples(self) -> Tensor:
        """Training samples of each client, float64 [n]."""
        return self.counts.sum(dim=1)

    def rows(self, rows: Tensor) -> Tensor:
        """``[P]`` or ``[n, P]`` as ``[n, P]``; a view, not to be written to."""
        if tuple(rows.shape) not in ((self.layout.width,), (len(self.ids), self.layout.width)):
            raise ValueError(f"rows of models have shape {list(rows.shape)}; expected [{self.layout.width}], "
                             f"one model, or [{len(self.ids)}, {self.layout.width}], one for each client")
        return rows.expand(len(self.ids), -1) if rows.dim() == 1 else rows

    def buffers(self, model: str = "model") -> Tensor:
        """The batch-norm statistics of one of the clients' models, ``[n, B]``; B is 0 without batch norm.

        A view, not to be written to; ``at`` takes a row of it.
        """
        if not self.resources.buffers.width:
            return torch.zeros(len(self.ids), 0, device=self.resources.device)
        return self.state[buffer_name(model)]

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), ``[n, *shape]``, each client's own, keyed by purpose, round and client.

        A longer first dimension only adds numbers: what a client draws does not depend on its
        neighbours' needs.
        """
        draws = [randomness.generator(self.setup.seed, "uniform", purpose,
                                      self.round, int(client)).random(shape)
                 for client in self.ids]
        return torch.from_numpy(np.stack(draws)).float().to(self.resources.device)

    def train(self, rows: Tensor, *, loss: Loss | None = None, params: Sequence[Group] = ("all",),
              epochs: int | None = None, steps: int | None = None, phase: str = "train",
              proximal: tuple[float, Tensor] | None = None, share: float = 1.0, only: Tensor | None = None,
              until: Callable[[Tensor, Tensors], Tensor] | None = None, model: str = "model",
              variables: Tensors | None = None) -> Tensor:
        """Local training from ``rows``: returns the trained rows ``[n, P]``; what is given stays as it is.

        loss: default the method's objective.
        params: the groups of columns that move (layout.columns); the rest is frozen, its batch norm in
            evaluation mode.
        epochs: default ``training.epochs``; with ``until`` the most there may be.
        steps: the most steps of an epoch.
        phase: names the shuffles, so that two phases of a round see different orders; each once a call.
        proximal: (strength, anchor rows): the proximal term strength/2·‖w − anchor‖².
        share: trains on a random share of a client's samples, fixed for the phase, at least one.
        only: which clients train, bool [n]; the others' rows are returned as they are.
        until: of the epochs' last-batch losses [lanes, epochs so far] and the lanes' variables → which are
            done [lanes].
        model: which of a client's models this is, where a method keeps several (own buffers each).
        variables: per-client tensors [n, …] by name, for the loss as ``lane.NAME``.

        Raises ValueError for shapes that do not fit, and for a phase that was trained before in this call.
        """
        return self._trained(rows, model, variables, training.Task(
            self.round, loss or self.loss, self.layout.members(params), self._epochs(epochs), steps, 1, phase,
            self._anchored(proximal), share, only, until)).rows

    def train_by(self, step: Callable[[Turn], None], rows: Tensor, *, batches: int = 1,
                 loss: Loss | None = None, params: Sequence[Group] = ("all",),
                 epochs: int | None = None, steps: int | None = None,
                 phase: str = "train", proximal: tuple[float, Tensor] | None = None, share: float = 1.0,
                 only: Tensor | None = None, until: Callable[[Tensor, Tensors], Tensor] | None = None,
                 model: str = "model", variables: Tensors | None = None) -> tuple[Tensor, Tensors]:
        """As ``train``, each mini-batch in the hands of the method's own ``step`` (see Turn).

        Returns the trained rows ``[n, P]`` and, by name, the ``variables`` [n, …] with what steps assigned
        anew; the given tensors stay as they are. In a step they are ``turn.variables[NAME]``.

        batches: disjoint mini-batches that a step sees at once; a last step has them smaller, never empty.
        """
        trained = self._trained(rows, model, variables, training.Task(
            self.round, loss or self.loss, self.layout.members(params), self._epochs(epochs), steps, batches,
            phase, self._anchored(proximal), share, only, until, step))
        return trained.rows, {**(variables or {}), **trained.changed}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Training inside is for a score alone: it moves no private state and leaves the recorded
        loss as it was."""
        state, losses = self.state, self.losses
        self.state = dict(state)
        yield
        self.state, self.losses = state, losses

    def score(self, column: str | Sequence[str], rows: Tensor,
              predict: Predict | None = None, model: str = "model",
              variables: Tensors | None = None) -> None:
        """Record the scores of ``rows`` on each client's test samples as ``column``, in scored rounds only.

        column: several where one model is several, such as ("pre", "global"): it is scored once.
        predict: of (model, x, lane) → logits [batch, classes]; default ``model(x)``. variables:
        as for ``train``.
        """
        if not self.scored:
            return
        with self.resources.stopwatch.phase("score"):
            scores = self.resources.scores
            sums = self._sums("test", rows, predict or plainly, model, self._variables(variables), scores)
        self.scores |= dict.fromkeys([column] if isinstance(column, str) else column, sums)

    def loss_of(self, models: Tensor | Pool, on: Literal["train", "validation"] = "train",
                model: str = "model") -> Tensor:
        """Mean cross-entropy of models on each client's own samples, in evaluation mode, float64.

        ``[n]`` of rows ``[n, P]`` or ``[P]``; ``[n, m]`` of a pool, infinite where nothing was picked.
        Without samples 0.
        """
        if isinstance(models, Tensor):
            scores = {"loss": cross_entropy.plugin()}
            total, samples = self._sums(on, models, plainly, model, {}, scores)["loss"].T
            mean: Tensor = total / samples.clamp(min=1)
            return mean.to(self.resources.device)
        losses = torch.full(models.picks.shape, torch.inf, dtype=torch.float64, device=self.resources.device)
        for column, picks in enumerate(models.picks.T):
            losses[:, column] = self.loss_of(models.rows[picks.clamp(min=0)], on, model)
        return losses.masked_fill(models.picks < 0, torch.inf)

    def _sums(self, on: str, rows: Tensor, predict: Predict, model: str, variables: Tensors,
              scores: Mapping[str, Score]) -> scoring.Sums:
        resources = self.resources
        found, order = [], list[int]()
        pools = [resources.samples.parts[on][int(client)] for client in self.ids]
        once = (rows.dim() == 1 and on == "test" and resources.samples.global_test and not variables
                and not resources.buffers.width)

        def together(clients: list[int]) -> None:
            lanes = torch.tensor(clients, device=resources.device)
            tensors = self._stacked(rows, model, lanes)
            own = {key: value[lanes] for key, value in variables.items()}
            found.append(scoring.score(resources.kernel, tensors, resources.samples,
                                       [pools[i] for i in clients], own,
                                       predict, scores))
            order.extend(clients)
            resources.beat()

        for group in scoring.groups(pools[:1] if once else pools):
            resources.side_by_side(group, together)
        if once:  # one model on the same samples for all
            return scoring.merge(found * len(self.ids), list(range(len(self.ids))))
        return scoring.merge(found, order)

    def record(self, name: str, values: Tensor) -> None:
        """Record a number of each client [n] as ``recorded/NAME``, and its mean over clients."""
        self.recorded[name] = self._of_each_client(f"the recorded '{name}'", values)

    def class_means(self, rows: Tensor, function: Predict, model: str = "model",
                    draws: tuple[int, int] | None = None) -> Tensor:
        """Each client's per-class mean over its training samples of ``function(model, x, lane)`` [batch, d],
        in evaluation mode: ``[n, classes, d]``, zero for classes it does not hold.

        draws: (times, size): instead of all samples of a class, the mean over so many random draws
        of at most ``size``.
        """
        resources, means, order = self.resources, [], list[int]()
        pools = [self._drawn(client, *draws) if draws else resources.samples.train[int(client)]
                 for client in self.ids]
        pools = [resources.samples.vary(pool, self.setup.seed, "class means", self.round, int(client))
                 for client, pool in zip(self.ids, pools, strict=True)]

        def together(clients: list[int]) -> None:
            lanes = torch.tensor(clients, device=resources.device)
            tensors = self._stacked(rows, model, lanes)
            sums, counts = torch.zeros(()), torch.zeros(())
            for output, y, mask in scoring.outputs(resources.kernel, tensors, resources.samples,
                                                   [pools[i] for i in clients], {}, function):
                member = (nn.functional.one_hot(y, resources.samples.classes) * mask[..., None]).double()
                sums = sums + torch.einsum("lbk,lbd->lkd", member,
                                           torch.where(mask[..., None], output, 0).double())
                counts = counts + member.sum(dim=1)
            means.append(sums / counts.clamp(min=1)[..., None])
            order.extend(clients)

        for group in scoring.groups(pools):
            resources.side_by_side(group, together)
        return torch.cat(means).float()[torch.tensor(order, device=resources.device).argsort()]

    def head_gradients(self, rows: Tensor, model: str = "model",
                       draws: tuple[int, int] | None = None) -> Tensor:
        """Each client's gradients of its classes' mean cross-entropy with respect to the linear output layer
        ``head``.

        ``[n, K, P_h]`` at models ``rows`` in evaluation mode, zero for classes that a client does not hold;
        ``draws``: see ``class_means``.
        """
        return head_gradients.from_means(
            self.class_means(rows, head_gradients.outer_products, model, draws), self.layout)

    def _variables(self, variables: Tensors | None) -> Tensors:
        """A method's variables, checked."""
        return {name: self._of_each_client(f"variable '{name}'", value)
                for name, value in (variables or {}).items()}

    def _of_each_client(self, what: str, values: Tensor) -> Tensor:
        if not values.dim() or len(values) != len(self.ids):
            raise ValueError(f"{what} has shape {list(values.shape)}; its first dimension must be the "
                             f"clients, {len(self.ids)}")
        return values

    def _drawn(self, client: int, times: int, size: int) -> np.ndarray:
        """Positions of ``times`` draws of at most ``size`` samples from each class, one after the other."""
        pool = self.resources.samples.train[int(client)]
        labels = self.resources.samples.y[torch.from_numpy(pool).to(self.resources.device)].cpu().numpy()
        drawn = []
        for label in np.unique(labels):
            held = pool[labels == label]
            random = randomness.generator(self.setup.seed, "class draws", self.round, int(client), int(label))
            drawn += [held[random.permutation(len(held))[:size]] for _ in range(times)]
        return np.concatenate(drawn) if drawn else pool

    def _trained(self, rows: Tensor, model: str, variables: Tensors | None,
                 task: training.Task) -> training.Trained:
        """What the clients are after a task; their buffers are kept."""
        if task.phase in self._phases:
            raise ValueError(f"phase '{task.phase}' was trained already in this call; "
                             "shuffles are keyed by phase")
        self._phases.add(task.phase)
        given = self._variables(variables)
        trained = training.train(task, self.resources, self.ids, self.rows(rows), self.buffers(model), given)
        if self.resources.buffers.width:
            self.state[buffer_name(model)] = trained.buffers
        self.losses = trained.losses
        return trained

    def _epochs(self, epochs: int | None) -> int:
        return self.setup.training.epochs if epochs is None else epochs

    def _anchored(self, proximal: tuple[float, Tensor] | None) -> tuple[float, Tensor] | None:
        return None if proximal is None else (proximal[0], self.rows(proximal[1]))

    def _stacked(self, rows: Tensor, model: str, lanes: Tensor) -> Tensors:
        """Copies of these clients' parameters and buffers, ``[L, *shape]`` by name."""
        return self.resources.stacked(self.rows(rows)[lanes], self.buffers(model)[lanes])


def buffer_name(model: str) -> str:
    """The private-state name of a model's buffers: batch-norm statistics stay with the client."""
    return f"{BUFFERS}{model}"


def plainly(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """The prediction of a plain model."""
    logits: Tensor = model(x)
    return logits


__all__ = ["Fleet", "Pool", "Resources", "Turn", "at", "buffer_name"]
