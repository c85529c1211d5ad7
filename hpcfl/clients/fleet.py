"""The clients of one rank, as a method sees them.

``Fleet`` trains, evaluates and records n clients in one call of a method: it checks the
arguments, calls ``training.py``, ``scoring.py`` or ``outputs.py``, and stores the
results. ``TrainOptions`` are the options of a local training, ``Scoring`` and
``Results`` the settings and results of the calls.
"""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import head_gradients, outputs, scoring, training
from hpcfl.clients.batch_plan import TrainingRequest
from hpcfl.clients.losses import (
    FrozenMode,
    Loss,
    Predict,
    Tensors,
    default_prediction,
)
from hpcfl.clients.resources import Models, Resources
from hpcfl.clients.samples import choose_some
from hpcfl.clients.scoring import Sums
from hpcfl.clients.setup import Setup
from hpcfl.clients.step_context import StepContext
from hpcfl.communication.message import Pool
from hpcfl.errors import UserError, suggest
from hpcfl.rows import randomness
from hpcfl.rows.declared import (
    DeclaredTensors,
    NamedTensors,
    describe_form,
    refuse_changes,
)
from hpcfl.rows.layout import Group, Layout
from hpcfl.scores.base import Score
from hpcfl.scores.built_in import Loss as CrossEntropy
from hpcfl.scores.metric_names import has_scores, name_held_out

BUFFERS = "buffers."
Number = TypeVar("Number", int, float)


class TrainOptions(TypedDict, total=False):
    """Keyword options of ``Fleet.train`` and ``Fleet.train_by``.

    Attributes:
        loss: loss function to minimise; by default the method's objective.
        params: groups of parameters to train (see ``Layout``), by default all. The
            other parameters are frozen, and their batch norm is in evaluation mode.
        epochs: number of epochs, by default ``training.epochs``; with ``until`` the
            maximum number.
        steps: maximum number of steps in an epoch; by default one step for each
            mini-batch.
        phase: name of this training in the key of all shuffles, by default "train". Two
            phases of a round see different orders. A fleet trains each phase once.
        proximal: (strength, anchor rows) of the proximal term strength/2·‖w − anchor‖².
            In ``train_by`` only ``optimizer_step`` descends it.
        share: fraction of a client's samples to train on, by default 1. The samples are
            drawn for the phase, at least one for each client.
        only: mask of the clients that train, bool [n]; the rows of the other clients
            are returned unchanged.
        until: function called after each epoch with the losses of the epochs' last
            mini-batches [L, epochs so far] and the variables of L lanes. It returns a
            mask of the lanes that stop, bool [L].
        model: name of the client's model, by default "model". A method with several
            models per client names each of them; each has separate buffers.
        variables: tensors ``[n, …]`` by name, which the loss reads as ``lane.NAME``.
    """

    loss: Loss | None
    params: Sequence[Group]
    epochs: int | None
    steps: int | None
    phase: str
    proximal: tuple[float, Tensor] | None
    share: float
    only: Tensor | None
    until: Callable[[Tensor, Tensors], Tensor] | None
    model: str
    variables: Tensors | None


@dataclass
class Scoring:
    """Settings for scoring the models of a fleet.

    Attributes:
        is_due: whether models are scored in this round.
        tune_epochs: numbers of epochs of fine-tuning at scoring. The clients' start
            models are trained, and scored after each of these numbers of epochs
            (``Method.score``).
        scores_starts: whether ``Method.score`` scores the clients' start models; False
            if they are scored at another time than they are trained.
    """

    is_due: bool
    tune_epochs: Sequence[int] = ()
    scores_starts: bool = True


@dataclass
class Results:
    """Results of the calls of a fleet.

    Attributes:
        sample_gradients: number of per-sample gradients that each client has computed,
            int64 [n] on the host. Every gradient of a mini-batch adds the number of its
            samples, whichever parameters it is taken for. Gradients of a ``trial`` are
            included.
        scoring_gradients: number of these gradients that were computed for scores,
            int64 [n].
        scores: sums recorded by ``score``, by column.
        recorded: numbers recorded by ``record``, [n] by name.
        trainings: requested local trainings, except trainings of a ``trial``.
        noisy_batches: number of mini-batches from which each client computed g noisy
            gradients, in column g, int64 [n, …] on the host; None without noisy
            gradients. Mini-batches of a ``trial`` are excluded, because its models are
            never released.
        epsilon: each client's ε after the round, float64 [n]; None without privacy
            accounting.
        losses, data_losses: each client's mean objective in the last epoch of the last
            training (with the proximal term of the trained model), and the mean of the
            data term alone, float64 [n]; None before the first training.
    """

    sample_gradients: np.ndarray
    scoring_gradients: np.ndarray
    scores: dict[str, Sums] = field(default_factory=dict)
    recorded: Tensors = field(default_factory=dict)
    trainings: list[TrainingRequest] = field(default_factory=list)
    noisy_batches: np.ndarray | None = None
    epsilon: np.ndarray | None = None
    losses: Tensor | None = None
    data_losses: Tensor | None = None


def train_as_asked(task: training.Task) -> training.Task:
    """Return the training that a method asks for."""
    return task


@dataclass
class Fleet:
    """n clients of one rank, for one call of a method.

    All hooks of a call of ``update``, ``observe`` or ``finish``, and of the scoring of
    newcomers, receive the same fleet.

    Rows of models are ``[n, P]`` in the order of ``ids``, or ``[P]`` for one model that
    all clients share.

    Attributes:
        ids: client ids [n], ascending.
        state: the clients' private state, tensors ``[n, …]`` by name. Tensors that a
            method assigns are stored for the next round. Names, types and shapes are
            those of ``client_state``.
        class_counts: number of training samples of each class, float64 [n, classes]. A
            method reads ``counts`` instead, which sample-level privacy refuses.
        rounds: number of the round, from 1, in the key of each client's random draws,
            int64 [n]. With an asynchronous server it differs between clients that
            started from different models.
        scoring: settings for scoring models.
        loss: default objective of ``train``.
        resources: kernel, samples and device of the rank.
        results: results of the calls so far.
        pace: fraction of the epochs of each training of the round that each client
            completes, [n] in [0, 1]. Every client completes at least one epoch. None if
            all clients complete all epochs.
        adjust: function that changes each training before it begins, such as to fewer
            epochs.
    """

    ids: np.ndarray
    state: MutableMapping[str, Tensor]
    class_counts: Tensor
    rounds: np.ndarray
    scoring: Scoring
    loss: Loss
    resources: Resources
    results: Results = field(init=False)
    pace: np.ndarray | None = None
    adjust: Callable[[training.Task], training.Task] = train_as_asked
    _phases: set[str] = field(default_factory=set)
    _in_trial: bool = False

    def __post_init__(self) -> None:
        self.state = _declare(self.state)
        counts = np.zeros(len(self.ids), np.int64)
        self.results = Results(counts, counts.copy())

    @property
    def setup(self) -> Setup:
        """Facts of the experiment."""
        return self.resources.setup

    @property
    def layout(self) -> Layout:
        """Layout of the parameters in a row."""
        return self.setup.layout

    @property
    def round(self) -> int:
        """The number of the round, from 1.

        Raises:
            ValueError: The clients are in different rounds.
        """
        round: int = require_one(self.rounds.tolist())
        return round

    @property
    def learning_rate(self) -> float:
        """The learning rate of this round for a method's own plain gradient steps.

        Raises:
            ValueError: The clients have different learning rates.
        """
        return require_one(map(self.setup.plain_rate, self.rounds.tolist()))

    @property
    def counts(self) -> Tensor:
        """Number of training samples of each class, float64 [n, classes].

        Raises:
            UserError: Sample-level privacy is on.
        """
        return self.setup.show_classes(self.class_counts)

    @property
    def samples(self) -> Tensor:
        """Number of training samples of each client, float64 [n]."""
        return self.class_counts.sum(dim=1)

    def rows(self, rows: Tensor) -> Tensor:
        """Return rows ``[P]`` or ``[n, P]`` as a view ``[n, P]``, which must not be
        written to.

        Raises:
            ValueError: ``rows`` has another shape.
        """
        if tuple(rows.shape) not in (
            (self.layout.width,),
            (len(self.ids), self.layout.width),
        ):
            raise ValueError(
                f"rows of models have shape {list(rows.shape)}; expected [{self.layout.width}], "
                f"one model, or [{len(self.ids)}, {self.layout.width}], one for each client"
            )
        return rows.expand(len(self.ids), -1) if rows.dim() == 1 else rows

    def buffers(self, model: str = "model") -> Tensor:
        """Return the batch-norm statistics ``[n, B]`` of the clients' models.

        B is 0 without batch norm. The result is a view that must not be written to. A
        row of it can be the ``buffers`` of ``evaluate_at``.

        Args:
            model: name of the client's model, as for ``train``.
        """
        if not self.resources.buffers.width:
            return torch.zeros(len(self.ids), 0, device=self.resources.device)
        return self.state[name_buffers(model)]

    def keep_buffers(self, model: str, buffers: Tensor) -> None:
        """Store the batch-norm statistics ``[n, B]`` of the clients' models.

        Args:
            model: name of the client's model, as for ``train``.
            buffers: statistics to store.
        """
        if self.resources.buffers.width:
            self.state[name_buffers(model)] = buffers

    def _gather_models(
        self, rows: Tensor, model: str = "model", variables: Tensors | None = None
    ) -> Models:
        """Return the clients' models, for rows ``[n, P]`` or ``[P]``.

        Args:
            rows: parameters of the models.
            model: name of the client's model, as for ``train``.
            variables: tensors by name. Raises ValueError if one is not ``[n, …]``.
        """
        named = variables or {}
        for name, value in named.items():
            if not value.dim() or len(value) != len(self.ids):
                raise ValueError(
                    f"variable '{name}' has shape {list(value.shape)}; its first dimension "
                    f"must be the clients, {len(self.ids)}"
                )
        return Models(
            rows=self.rows(rows),
            buffers=self.buffers(model),
            variables=named,
            are_equal=rows.dim() == 1 and not (named or self.resources.buffers.width),
        )

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), ``[n, *shape]``.

        They are keyed by purpose, round and client. A larger first dimension of
        ``shape`` appends numbers and keeps the earlier ones. A client's draws therefore
        do not depend on the number that other clients need.
        """
        draws = []
        for key in self._keys:
            random = randomness.generator(self.setup.seed, "uniform", purpose, *key)
            draws.append(random.random(shape))
        return torch.from_numpy(np.stack(draws)).float().to(self.resources.device)

    def train(self, rows: Tensor, **options: Unpack[TrainOptions]) -> Tensor:
        """Train locally from ``rows`` and return the trained rows ``[n, P]``.

        The given tensors do not change. Batch-norm buffers are updated in ``state``,
        and ``results.losses`` are set to the losses of this training.

        Args:
            rows: start models, ``[n, P]`` or ``[P]``.
            options: options listed in ``TrainOptions``.

        Raises:
            ValueError: A shape does not fit, or the phase was already trained.
        """
        task, start = self._make_task(rows, options)
        trained = training.train(self.adjust(task), self.resources, start)
        self._store(task, trained, options)
        return trained.rows

    def train_by(
        self,
        step: Callable[[StepContext], None],
        rows: Tensor,
        *,
        batches: int = 1,
        frozen: FrozenMode = "evaluation",
        **options: Unpack[TrainOptions],
    ) -> tuple[Tensor, Tensors]:
        """Train with the method's own ``step`` and return rows and variables.

        The given tensors do not change. A step reads and assigns
        ``context.variables[NAME]``.

        Args:
            step: function that takes one step, called with a ``StepContext``.
            rows: start models, ``[n, P]`` or ``[P]``.
            batches: number of disjoint mini-batches for each step. In the last step of
                an epoch they may be smaller, but not empty.
            frozen: mode of the layers without trained parameters. In "training" mode
                their batch norm uses the statistics of each mini-batch.
            options: options listed in ``TrainOptions``.

        Returns:
            The trained rows ``[n, P]`` and the ``variables`` ``[n, …]`` by name after
            the last step.

        Raises:
            ValueError: As for ``train``, or the mode or number of mini-batches is
                invalid.
        """
        if frozen not in ("evaluation", "training"):
            raise ValueError(
                f"frozen = {frozen!r}; expected 'evaluation' or 'training'"
            )
        if batches < 1 or batches % 1:
            raise ValueError(f"batches = {batches}; expected a whole number from 1")
        task, start = self._make_task(rows, options)
        task = replace(task, step=step, batches=batches, frozen_mode=frozen)
        trained = training.train(self.adjust(task), self.resources, start)
        self._store(task, trained, options)
        variables: Any = NamedTensors(start.variables | trained.changed, "variables")
        return trained.rows, variables

    def _make_task(
        self, rows: Tensor, options: TrainOptions
    ) -> tuple[training.Task, Models]:
        """Return the requested training and its start models.

        Raises:
            TypeError: An option is unknown.
            ValueError: A shape or another option is invalid, or the phase was already
                trained.
        """
        known = sorted(TrainOptions.__annotations__)
        for name in options:
            if name not in known:
                raise TypeError(
                    f"unknown option '{name}' for fleet.train{suggest(name, known)}"
                )
        model = options.get("model", "model")
        start = self._gather_models(rows, model, options.get("variables"))
        epochs = options.get("epochs")
        proximal = options.get("proximal")
        task = training.Task(
            ids=self.ids,
            rounds=self.rounds,
            loss=options.get("loss") or self.loss,
            names=self._list_names(options.get("params", ("all",))),
            epochs=self.setup.training.epochs if epochs is None else epochs,
            pace=self.pace,
            steps=options.get("steps"),
            phase=options.get("phase", "train"),
            proximal=proximal and (proximal[0], self.rows(proximal[1])),
            share=options.get("share", 1.0),
            only=options.get("only"),
            until=options.get("until"),
            is_trial=self._in_trial,
        )
        for name, count in (("epochs", task.epochs), ("steps", task.steps)):
            if count is not None and (count < 0 or count % 1):
                raise ValueError(f"{name} = {count}; expected a whole number")
        if not 0 <= task.share <= 1:
            raise ValueError(f"share = {task.share}; expected a fraction, 0 to 1")
        form = torch.bool, (len(self.ids),)
        if task.only is not None and (task.only.dtype, task.only.shape) != form:
            raise ValueError(
                f"only = {describe_form(task.only)}; expected bool {list(form[1])}, whether "
                "each client trains"
            )
        if task.phase in self._phases:
            raise ValueError(
                f"phase '{task.phase}' was already trained in this call; shuffles are keyed by "
                'the phase: pass another phase="NAME" to the second training'
            )
        self._phases.add(task.phase)
        return task, start

    def _list_names(self, params: Sequence[Group]) -> list[str]:
        """Return the names of the parameters in groups.

        Raises:
            UserError: All these parameters are frozen.
        """
        if names := self.layout.list_members(params):
            return names
        raise UserError(
            f"the method trains only {', '.join(map(str, params))}, but the model freezes all of "
            "these parameters (requires_grad = False); unfreeze some of them, or choose another method"
        )

    def _store(
        self, task: training.Task, trained: training.Trained, options: TrainOptions
    ) -> None:
        """Store the buffers and losses of a training, and record the request."""
        self.keep_buffers(options.get("model", "model"), trained.buffers)
        results = self.results
        results.losses, results.data_losses = trained.losses.unbind(dim=1)
        results.sample_gradients += trained.sample_gradients
        if task.is_trial:
            return
        noisy = trained.noisy_batches
        taken = np.flatnonzero(noisy.sum(axis=0))
        gradients = int(taken.max(initial=0))
        asked = task.epochs, task.batches, task.steps, task.share, gradients
        results.trainings.append(TrainingRequest(*asked))
        if self.resources.privacy is not None:
            before = results.noisy_batches
            results.noisy_batches = noisy if before is None else before + noisy

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Open a block of training outside the round's work, such as for a score.

        After the block, private state and losses are restored. Stragglers complete all
        epochs in it, so that a score has the same meaning for every client. Scores,
        records and gradient counts made in the block remain.

        Raises:
            UserError: Private state has changed in place, which cannot be restored.
        """
        results, state, pace = self.results, self.state, self.pace
        losses = results.losses, results.data_losses
        was_in_trial = self._in_trial
        self.state, self.pace, self._in_trial = _declare(state), None, True
        named = {f"fleet.state['{name}']": value for name, value in state.items()}
        try:
            with refuse_changes(named):
                yield
        finally:
            results.losses, results.data_losses = losses
            self.state, self.pace, self._in_trial = state, pace, was_in_trial

    def score(
        self,
        column: str | Sequence[str],
        rows: Tensor,
        predict: Predict | None = None,
        model: str = "model",
        variables: Tensors | None = None,
    ) -> None:
        """Record the scores of ``rows`` on each client's test samples as ``column``.

        The call has no effect in rounds without scoring. If samples are held out to
        choose the best round, the scores on these are recorded as
        ``validation/COLUMN``.

        Args:
            column: name of the column. Several names, such as ("pre", "global"), record
                one model in several columns; it is scored once.
            rows: models to score, ``[n, P]`` or ``[P]``.
            predict: function of (model, x, lane) that returns logits [batch, classes];
                by default ``model(x)``.
            model, variables: as for ``train``.

        Raises:
            UserError: A name of a column is reserved, or another model has it.
        """
        if not self.scoring.is_due:
            return
        columns = [column] if isinstance(column, str) else list(column)
        for name in columns:
            if "/" in name or not has_scores(name):
                raise UserError(
                    f"fleet.score('{name}', …): this name is reserved; "
                    "choose another name without '/'"
                )
            if name in self.results.scores:
                raise UserError(
                    f"fleet.score('{name}', …): another model has the column '{name}' in "
                    "this round; choose another name"
                )
        parts = {"test": columns}
        if self.resources.samples.selects:
            parts["selection"] = list(map(name_held_out, columns))
        with self.resources.stopwatch.phase("score"):
            models = self._gather_models(rows, model, variables)
            for part, names in parts.items():
                sums: Sums = {}
                for on, scores in self._select_scores(part).items():
                    sums |= scoring.sum_scores(
                        resources=self.resources,
                        models=models,
                        ids=self.ids,
                        on=on,
                        predict=predict or default_prediction,
                        scores=scores,
                    )
                self.results.scores |= dict.fromkeys(names, sums)

    def _select_scores(self, part: str) -> dict[str, dict[str, Score]]:
        """Return the scores for a part of the samples, by the samples that they need."""
        scores: dict[str, dict[str, Score]] = {}
        for name, score in self.resources.scores.items():
            on = part if score.scored_on == "test" else score.scored_on
            if on == part or part == "test":
                scores.setdefault(on, {})[name] = score
        return scores

    def loss_of(
        self,
        models: Tensor | Pool,
        on: Literal["train", "validation"] = "train",
        model: str = "model",
    ) -> Tensor:
        """Return the mean cross-entropy of models on clients' own samples, float64.

        Models are in evaluation mode. The loss of a client without samples is 0.

        Args:
            models: rows ``[n, P]`` or ``[P]``, or a pool in which each client picks m
                models.
            on: part of the samples.
            model: name of the client's model whose buffers are used.

        Returns:
            Losses [n] for rows, [n, m] for a pool; infinite if a client picks fewer
            models.

        Raises:
            UserError: Sample-level privacy is on.
        """
        self._refuse_reading("losses of models ('loss_of')")
        if isinstance(models, Tensor):
            sums = scoring.sum_scores(
                resources=self.resources,
                models=self._gather_models(models, model),
                ids=self.ids,
                on=on,
                predict=default_prediction,
                scores={"loss": CrossEntropy()},
            )
            total, samples = sums["loss"].T
            mean: Tensor = total / samples.clamp(min=1)
            return mean.to(self.resources.device)
        losses = torch.zeros_like(models.picks, dtype=torch.float64)
        for column, picks in enumerate(models.picks.T):
            losses[:, column] = self.loss_of(models.take(picks.clamp(min=0)), on, model)
        return losses.masked_fill(models.picks < 0, torch.inf)

    def record(self, name: str, values: Tensor) -> None:
        """Record a number for each client as ``recorded/NAME``, and its mean.

        Args:
            name: name of the metric.
            values: one number for each client, [n].

        Raises:
            ValueError: ``values`` is not [n], or the name has a ``/``, or is that of
                another number's deviation.
        """
        if "/" in name:
            raise ValueError(f"the recorded '{name}' has a '/' in its name")
        of_deviation = {f"{name}_std", name.removesuffix("_std")} - {name}
        if of_deviation & self.results.recorded.keys():
            raise ValueError(
                f"the recorded '{name}': NAME_std is the deviation of NAME"
            )
        if values.shape != (len(self.ids),):
            raise ValueError(
                f"the recorded '{name}' has shape {list(values.shape)}; expected one "
                f"number for each client, [{len(self.ids)}]"
            )
        self.results.recorded[name] = values

    def class_means(
        self,
        rows: Tensor,
        function: Predict,
        model: str = "model",
        draws: tuple[int, int] | None = None,
        variables: Tensors | None = None,
    ) -> Tensor:
        """Return the means of ``function`` over clients' training samples by class.

        Args:
            rows: models passed to the function, in evaluation mode.
            function: function of (model, x, lane) that returns ``[batch, d]``.
            model: name of the client's model, as for ``train``.
            draws: (times, size) to average over ``times`` random draws of at most
                ``size`` samples of each class; by default over all samples.
            variables: as for ``train``.

        Returns:
            Means ``[n, classes, d]``, float32; zero for classes without samples of the
            client.

        Raises:
            UserError: Sample-level privacy is on.
        """
        self._refuse_reading("means of samples by class ('class_means')")
        samples, seed = self.resources.samples, self.setup.seed
        pools = []
        for round, client in self._keys:
            pool = samples.train[client]
            if draws:
                pool = samples.draw_by_class(client, *draws, seed, round, client)
            pools.append(samples.vary(pool, seed, "class means", round, client))
        models = self._gather_models(rows, model, variables)
        return outputs.average_by_class(self.resources, models, pools, function)

    def outputs(
        self,
        rows: Tensor,
        function: Predict,
        most: int | None = None,
        model: str = "model",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of ``function`` for each client's training samples.

        The outputs may be features, for example.

        Args:
            rows: models passed to the function, in evaluation mode.
            function: function of (model, x, lane) that returns ``[batch, d]``; the lane
                has no variables.
            most: maximum number S of samples per client. A client with more samples
                uses a random subset, drawn for each round. By default S is the largest
                number of samples of a client of this fleet.
            model: name of the client's model, as for ``train``.

        Returns:
            Outputs ``[n, S, d]``, labels ``[n, S]``, and a mask of the entries that
            hold a sample, bool ``[n, S]``. All other entries are zero.

        Raises:
            UserError: Sample-level privacy is on.
        """
        self._refuse_reading("outputs of samples ('outputs')")
        samples, seed = self.resources.samples, self.setup.seed
        pools = [
            choose_some(samples.train[client], most, seed, "outputs", round, client)
            for round, client in self._keys
        ]
        size = max(map(len, pools)) if most is None else most
        models = self._gather_models(rows, model)
        return outputs.compute_padded_outputs(
            self.resources, models, pools, function, size
        )

    def head_gradients(
        self, rows: Tensor, model: str = "model", draws: tuple[int, int] | None = None
    ) -> Tensor:
        """Return the gradients of cross-entropy for the layer ``head``, by class.

        The loss is the mean over each client's samples of a class.

        Args:
            rows: models ``[n, P]`` or ``[P]``, in evaluation mode.
            model, draws: as for ``class_means``.

        Returns:
            Gradients ``[n, K, P_h]`` for K classes and P_h parameters of the head; zero
            for classes without samples of the client.

        Raises:
            UserError: Sample-level privacy is on.
        """
        self._refuse_reading("gradients by class ('head_gradients')")
        taken = self.counts.cpu().numpy()
        if draws is not None:
            times, size = draws
            taken = times * taken.clip(max=size)
        self.results.sample_gradients += taken.sum(axis=1).astype(np.int64)
        return head_gradients.compute_from_means(
            self.class_means(rows, head_gradients.compute_outer_products, model, draws),
            self.layout,
        )

    def _refuse_reading(self, what: str) -> None:
        """Raise UserError if sample-level privacy forbids reading samples directly."""
        if self.resources.privacy is not None:
            self.resources.privacy.refuse(what)

    @property
    def _keys(self) -> Iterator[tuple[int, int]]:
        """Yield the round and the id of each client."""
        return zip(self.rounds.tolist(), self.ids.tolist(), strict=True)


def require_one(numbers: Iterable[Number]) -> Number:
    """Return the common value of ``numbers``. Raises ValueError if they differ."""
    distinct = set(numbers)
    if len(distinct) > 1:
        raise ValueError(f"clients of different rounds have {sorted(distinct)}")
    return distinct.pop()


def _declare(state: Mapping[str, Tensor]) -> DeclaredTensors:
    return DeclaredTensors(state, "fleet.state", "client_state")


def name_buffers(model: str) -> str:
    """Return the key in ``Fleet.state`` of a client model's batch-norm statistics."""
    return f"{BUFFERS}{model}"
