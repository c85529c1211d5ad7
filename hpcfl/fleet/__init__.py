"""The fleet: the clients of one rank that a round concerns; trains and scores them for the method."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.communication.message import Pool
from hpcfl.fleet import scoring, training
from hpcfl.fleet.hardware import Hardware
from hpcfl.fleet.kernels import Loss, Predict, Tensors, at
from hpcfl.fleet.optimizers import Lanes, Optimizer, Pull
from hpcfl.fleet.setup import Setup
from hpcfl.fleet.turn import Gradient, Turn
from hpcfl.rows import randomness
from hpcfl.rows.layout import Group, Layout

BUFFERS = "buffers."


@dataclass
class Fleet:
    """n clients for one call of a method's ``update``, ``observe`` or ``finish``.

    ``ids`` [n] ascending; ``state`` their private state, tensors ``[n, …]`` by name: assign new values and they are kept;
    ``counts`` [n, classes] training samples; ``round`` counts from 1. Rows are ``[n, P]``, or ``[P]`` for one model
    that all clients share.
    """

    ids: np.ndarray
    state: Tensors
    counts: Tensor
    round: int
    scored: bool
    loss: Loss
    hardware: Hardware
    scores: dict[str, scoring.Score] = field(default_factory=dict)
    notes: Tensors = field(default_factory=dict)
    losses: Tensor | None = None
    _phases: set[str] = field(default_factory=set)
    _last_scored: tuple[Tensor, scoring.Score] | None = None

    @property
    def setup(self) -> Setup:
        return self.hardware.setup

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
            raise ValueError(f"rows of models have shape {list(rows.shape)}; expected [{self.layout.width}], one model, or "
                             f"[{len(self.ids)}, {self.layout.width}], one for each client")
        return rows.expand(len(self.ids), -1) if rows.dim() == 1 else rows

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), ``[n, *shape]``, each client's own, keyed by purpose, round and client.

        A longer first dimension only adds numbers: what a client draws does not depend on its neighbours' needs.
        """
        draws = [randomness.generator(self.setup.seed, "uniform", purpose, self.round, int(client)).random(shape)
                 for client in self.ids]
        return torch.from_numpy(np.stack(draws)).float().to(self.hardware.device)

    def train(self, rows: Tensor, *, loss: Loss | None = None, params: Sequence[Group] = ("all",),
              epochs: int | None = None, steps: int | None = None, batches: int = 1, phase: str = "train",
              pull: tuple[float, Tensor] | None = None, share: float = 1.0, only: Tensor | None = None,
              until: Callable[[Tensor, Tensors], Tensor] | None = None, step: Callable[[Turn], None] | None = None,
              model: str = "model", variables: Tensors | None = None) -> Tensor:
        """Local training from ``rows``: returns the trained rows ``[n, P]``; the given ones stay as they are.

        params: the groups of columns that move (layout.columns); the rest is frozen, its batch norm in evaluation mode.
        epochs: default ``training.epochs``; with ``until`` the most there may be.
        steps: the most steps of an epoch.
        batches: disjoint mini-batches that a ``step`` sees at once; a last step has them smaller, but never empty.
        pull: (strength, anchor rows): the proximal term strength/2·‖w − anchor‖².
        phase: names the shuffles, so that two phases of a round see different orders; each once a call.
        share: trains on a random share of a client's samples, fixed for the phase, at least one.
        only: which clients train, bool [n]; the others' rows are returned as they are.
        until: of the epochs' last-batch losses [lanes, epochs so far] and the lanes' variables → which are done [lanes].
        step: what to do with ONE mini-batch instead of an optimiser step on ``loss`` (see Turn).
        model: which of a client's models this is, where a method keeps several (own buffers each).
        variables: per-client tensors [n, …] by name, for the loss as ``lane.NAME``, for ``step`` as
            ``turn.variables[NAME]``; those that a step assigns anew are changed here, in place.
        """
        if phase in self._phases:
            raise ValueError(f"phase '{phase}' was trained already in this call; shuffles are keyed by phase")
        self._phases.add(phase)
        hardware, config, variables = self.hardware, self.hardware.training, self._variables(variables)
        trained = self.rows(rows).clone()
        epochs = config.epochs if epochs is None else epochs
        names = self.layout.members(params)
        schedule = training.Schedule(config.batch_size, hardware.seed, ("shuffle", phase, self.round))
        pools = [self._pool(client, share, phase) for client in self.ids]
        size = config.batch_size * batches
        fewest = batches * (2 if hardware.buffers.width else 1)  # batch norm has no statistics of a single sample
        lengths = [training.epoch_length(len(pool), size, fewest, steps) for pool in pools]
        mean_losses = torch.zeros(len(self.ids), dtype=torch.float64, device=hardware.device)
        order = [i for i in training.by_length(lengths, size) if lengths[i] and (only is None or only[i])]
        for chunk in training.chunks(order, hardware.kernel.widest):
            lanes = torch.tensor(chunk, device=hardware.device)
            tensors = self._stacked(trained, model, lanes)
            own, changed = {name: value[lanes] for name, value in variables.items()}, set[str]()
            gradient = hardware.kernel.session(tensors, names, loss or self.loss)
            anchor = None if pull is None else Pull(
                pull[0], hardware.kernel.lay_out(self.layout.stack(self.rows(pull[1])[lanes])))
            optimizer = Optimizer(config, self.learning_rate, anchor)
            advance = (self._descend(optimizer, tensors, gradient, own) if step is None
                       else self._hand_over(step, batches, names, tensors, gradient, optimizer, own, changed))
            history: list[Tensor] = []
            running = torch.ones(len(chunk), dtype=torch.bool)
            for epoch in range(epochs):
                orders = [hardware.samples.vary(schedule.order(int(self.ids[i]), pools[i], epoch)[:lengths[i]], hardware.seed,
                                                phase, self.round, int(self.ids[i]), epoch) for i in chunk]
                record = training.run_epoch(advance, hardware.samples, orders, size, running, hardware.work)
                mean_losses[lanes] = torch.where(running.to(hardware.device), record[:, 0], mean_losses[lanes])
                history.append(record[:, 1])
                if until is not None:
                    running &= ~until(torch.stack(history, dim=1), own).cpu()
                    if not running.any():
                        break
            trained[lanes] = self.layout.flatten(tensors, trained[lanes])
            self._keep_buffers(model, lanes, tensors)
            for name in changed:
                variables[name][lanes] = own[name]
        self.losses = mean_losses
        return trained

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Training inside is for a score alone: it moves no private state and leaves the recorded loss as it was."""
        state, losses = self.state, self.losses
        self.state = {name: tensor.clone() for name, tensor in state.items() if name.startswith(BUFFERS)} | {
            name: tensor for name, tensor in state.items() if not name.startswith(BUFFERS)}
        yield
        self.state, self.losses = state, losses

    def score(self, name: str, rows: Tensor, predict: Predict | None = None, model: str = "model",
              variables: Tensors | None = None) -> None:
        """Record accuracy and loss of ``rows`` on each client's test samples as column ``name``, in scored rounds only.

        predict: of (model, x, lane) → logits [batch, classes]; default ``model(x)``. variables: as for ``train``.
        """
        if not self.scored:
            return
        plain = predict is None and not variables
        if plain and self._last_scored is not None and self._last_scored[0] is rows:
            self.scores[name] = self._last_scored[1]
            return
        with self.hardware.stopwatch.phase("score"):
            self.scores[name] = self._scored("test", rows, predict or plainly, model, self._variables(variables))
        self._last_scored = (rows, self.scores[name]) if plain else None

    def loss_of(self, models: Tensor | Pool, on: Literal["train", "validation"] = "train", model: str = "model") -> Tensor:
        """Mean cross-entropy of models on each client's own samples, in evaluation mode, float64.

        ``[n]`` of rows ``[n, P]`` or ``[P]``; ``[n, m]`` of a pool, infinite where nothing was picked. Without samples 0.
        """
        if isinstance(models, Tensor):
            score = self._scored(on, models, plainly, model, {})
            return (score.loss / score.total.clamp(min=1)).to(self.hardware.device)
        losses = torch.full(models.picks.shape, torch.inf, dtype=torch.float64, device=self.hardware.device)
        for column, picks in enumerate(models.picks.T):
            losses[:, column] = self.loss_of(models.rows[picks.clamp(min=0)], on, model)
        return losses.masked_fill(models.picks < 0, torch.inf)

    def _scored(self, on: str, rows: Tensor, predict: Predict, model: str, variables: Tensors) -> scoring.Score:
        hardware = self.hardware
        found, order = [], list[int]()
        pools = [hardware.samples.parts[on][int(client)] for client in self.ids]
        once = rows.dim() == 1 and on == "test" and hardware.samples.global_test and not variables and not hardware.buffers.width
        for chunk in scoring.groups(pools[:1] if once else pools, hardware.kernel.widest):
            lanes = torch.tensor(chunk, device=hardware.device)
            tensors = self._stacked(rows, model, lanes)
            own = {key: value[lanes] for key, value in variables.items()}
            found.append(scoring.score(hardware.kernel, tensors, hardware.samples, [pools[i] for i in chunk], own, predict))
            order += chunk
            hardware.beat()
        if once:  # one model on the same samples for all
            return scoring.merge(found * len(self.ids), list(range(len(self.ids))))
        return scoring.merge(found, order)

    def note(self, name: str, values: Tensor) -> None:
        """Record a number of each client [n] as ``notes/NAME``, and its mean over clients."""
        self.notes[name] = self._of_each_client(f"note '{name}'", values)

    def class_means(self, rows: Tensor, function: Predict, model: str = "model",
                    draws: tuple[int, int] | None = None) -> Tensor:
        """Each client's per-class mean over its training samples of ``function(model, x, lane)`` [batch, d], in
        evaluation mode: ``[n, classes, d]``, zero for classes it does not hold.

        draws: (times, size): instead of all samples of a class, the mean over so many random draws of at most ``size``.
        """
        hardware, means, order = self.hardware, [], list[int]()
        pools = [self._drawn(client, *draws) if draws else hardware.samples.train[int(client)] for client in self.ids]
        pools = [hardware.samples.vary(pool, self.setup.seed, "class means", self.round, int(client))
                 for client, pool in zip(self.ids, pools, strict=True)]
        for chunk in scoring.groups(pools, hardware.kernel.widest):
            lanes = torch.tensor(chunk, device=hardware.device)
            tensors = self._stacked(rows, model, lanes)
            sums, counts = torch.zeros(()), torch.zeros(())
            for output, y, mask in scoring.outputs(hardware.kernel, tensors, hardware.samples, [pools[i] for i in chunk], {},
                                                   function):
                member = (nn.functional.one_hot(y, hardware.samples.classes) * mask[..., None]).double()
                sums = sums + torch.einsum("lbk,lbd->lkd", member, torch.where(mask[..., None], output, 0).double())
                counts = counts + member.sum(dim=1)
            means.append(sums / counts.clamp(min=1)[..., None])
            order += chunk
        return torch.cat(means).float()[torch.tensor(order, device=hardware.device).argsort()]

    def _variables(self, variables: Tensors | None) -> Tensors:
        """A method's variables, checked."""
        return {name: self._of_each_client(f"variable '{name}'", value) for name, value in (variables or {}).items()}

    def _of_each_client(self, what: str, values: Tensor) -> Tensor:
        if not values.dim() or len(values) != len(self.ids):
            raise ValueError(f"{what} has shape {list(values.shape)}; its first dimension must be the clients, "
                             f"{len(self.ids)}")
        return values

    def _drawn(self, client: int, times: int, size: int) -> np.ndarray:
        """Positions of ``times`` draws of at most ``size`` samples from each class, one after the other."""
        pool = self.hardware.samples.train[int(client)]
        labels = self.hardware.samples.y[torch.from_numpy(pool).to(self.hardware.device)].cpu().numpy()
        drawn = []
        for label in np.unique(labels):
            held = pool[labels == label]
            random = randomness.generator(self.setup.seed, "class draws", self.round, int(client), int(label))
            drawn += [held[random.permutation(len(held))[:size]] for _ in range(times)]
        return np.concatenate(drawn) if drawn else pool

    def _pool(self, client: int, share: float, phase: str) -> np.ndarray:
        pool = self.hardware.samples.train[int(client)]
        if share >= 1:
            return pool
        count = max(1, int(share * len(pool))) if len(pool) else 0
        chosen = randomness.permutation(len(pool), self.hardware.seed, "subset", phase, self.round, int(client))[:count]
        part: np.ndarray = pool[np.sort(chosen)]
        return part

    def _descend(self, optimizer: Optimizer, tensors: Tensors, gradient: Gradient,
                 own: Tensors) -> training.Step:
        """A step of the optimiser on the loss."""
        def step(lanes: Lanes, x: Tensor, y: Tensor) -> Tensor:
            gradients, losses = gradient(lanes, x, y, {name: value[lanes] for name, value in own.items()})
            optimizer.step(tensors, lanes, gradients)
            self.hardware.beat()
            return losses
        return step

    def _hand_over(self, method_step: Callable[[Turn], None], batches: int, names: list[str], tensors: Tensors,
                   gradient: Gradient, optimizer: Optimizer, own: Tensors,
                   changed: set[str]) -> training.Step:
        """The method's own step on its mini-batches; notes the variables it assigns in ``changed``."""
        def step(lanes: Lanes, x: Tensor, y: Tensor) -> Tensor:
            given = {name: value[lanes] for name, value in own.items()}
            parts = list(zip(x.tensor_split(batches, dim=1), y.tensor_split(batches, dim=1), strict=True))
            turn = Turn(dict(given), names, tensors, lanes, parts, gradient, optimizer)
            method_step(turn)
            for name, value in turn.variables.items():
                if value is not given[name]:
                    own[name][lanes] = value
                    changed.add(name)
            self.hardware.beat()
            return turn.losses
        return step

    def _stacked(self, rows: Tensor, model: str, lanes: Tensor) -> Tensors:
        """Copies of these clients' parameters and buffers, ``[L, *shape]`` by name, laid out as the kernel likes them."""
        tensors = self.layout.stack(self.rows(rows)[lanes])
        if self.hardware.buffers.width:
            tensors |= self.hardware.buffers.stack(self.state[buffer_name(model)][lanes])
        return self.hardware.kernel.lay_out(tensors)

    def _keep_buffers(self, model: str, lanes: Tensor, tensors: Tensors) -> None:
        if self.hardware.buffers.width:
            rows = self.state[buffer_name(model)]
            rows[lanes] = self.hardware.buffers.flatten(tensors, rows[lanes])


def buffer_name(model: str) -> str:
    """The private-state name of a model's buffers: batch-norm statistics stay with the client."""
    return f"{BUFFERS}{model}"


def plainly(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """The prediction of a plain model."""
    logits: Tensor = model(x)
    return logits


__all__ = ["Fleet", "Hardware", "Pool", "Turn", "at", "buffer_name"]
