"""A run read from its folder: summary, recorded metrics and models.

torch is imported only when a model is loaded.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import experiment_file, measures
from hpcfl.files.wording import list_first
from hpcfl.scores.metric_names import (
    CLIENTS,
    DIVERGED,
    FLOATS_UP,
    SECONDS,
    Described,
    Measure,
    MetricName,
    name_held_out,
)
from hpcfl.storage.metrics import AFTER, BEFORE, find_result_rounds, list_scores
from hpcfl.storage.results import DIGEST, Results
from hpcfl.storage.run_status import RunStatus

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from hpcfl.trained.models import RunModels


@dataclass(frozen=True)
class Summary:
    """Summary of a run; unknown values are None. Accuracies are in [0, 1].

    The primary column is ``evaluation.score`` or the method's own; the primary metric
    in it is ``evaluation.metric``. The models after the last aggregation count as round
    R + 1, which most methods score only before local training.

    Attributes:
        method: name of the method.
        dataset: name of the data set.
        rounds: number of played rounds.
        finished: Whether the run is finished.
        best: best round by the primary metric: ``{"round", "pre", "post"}`` with the
            metric before and after local training, and in the primary column if that is
            another.
        last: last round with the primary metric, as ``best``.
        tail: means over the last tenth of the rounds, as ``best``; ``"rounds"`` holds
            the first and the last of these rounds.
        digest: digest of the state in the newest checkpoint.
        seconds_per_round: mean wall time in seconds, without the first round.
        floats_up: mean number of floats that a participating client sends in a round.
        floats_down: mean number of floats sent to a client in a round. The three means
            are None for a packed run, which has only a few rounds.
        state: one word, see ``storage/run_status.py``.
        notes: notes on damaged or lost data, clients that diverged, and last rounds in
            which no client has a number.
        scores: metrics of the primary column in ``best``.
        newcomers: primary metric of newcomers, before and after their local training.
        best_by: samples on which ``best`` was chosen; its metrics use test samples.
        best_validation: primary metric in ``best`` on held-out training samples.
    """

    method: str
    dataset: str
    rounds: int
    finished: bool
    best: dict[str, Any] | None
    last: dict[str, Any] | None
    tail: dict[str, Any] | None
    digest: str | None
    seconds_per_round: float | None
    floats_up: float | None
    floats_down: float | None
    state: str
    notes: list[str]
    scores: dict[str, float | None] = field(default_factory=dict)
    newcomers: dict[str, float | None] | None = None
    best_by: str = "test"
    best_validation: float | None = None


def summarise(run: "Run") -> Summary:
    """Return the summary of a run."""
    config, results, status = run.config, run.results, run.status
    column, measure = run.score, run.measure

    def get_numbers(column: str) -> np.ndarray:
        return results.get_series(MetricName(measure.recorded, column))

    def compute_means(positions: list[int]) -> dict[str, float | None]:
        columns = dict.fromkeys(["pre", "post", column])
        return {name: _compute_mean(get_numbers(name)[positions]) for name in columns}

    rounds, played = results.rounds, results.played
    chosen = get_numbers(measures.find_chosen_column(config, column))
    counted = find_result_rounds(rounds, get_numbers(column), measure.orient, chosen)
    best = last = tail = best_validation = None
    scores: dict[str, float | None] = {}
    if counted is not None:
        best = {"round": int(rounds[counted.best]), **compute_means([counted.best])}
        last = {"round": int(rounds[counted.last]), **compute_means([counted.last])}
        ends = [counted.tail[0], counted.tail[-1]]
        tail = {"rounds": rounds[ends].tolist(), **compute_means(counted.tail)}
        best_validation = _compute_mean(
            get_numbers(name_held_out(column))[[counted.best]]
        )
        scores = _list_numbers(results, counted.best, column)
    newcomers = None
    if MetricName(measure.recorded, BEFORE) in results.names:
        newcomers = {
            "before": _compute_mean(get_numbers(BEFORE)[-1:]),
            "after": _compute_mean(get_numbers(AFTER)[-1:]),
        }
    # The few rounds of a packed run are no sample of its costs.
    counted_costs = played & (not results.is_packed)
    seconds = results.get_series(MetricName("round", SECONDS))
    of_clients = results.select_rounds(np.flatnonzero(counted_costs)).values.columns
    floats_up = of_clients.get(FLOATS_UP, np.zeros(0))
    floats_down = results.get_series(MetricName("floats_down"))
    prolonged = status.finished and status.done != config["rounds"]
    digest = None if prolonged else status.digest
    if results.is_packed:
        digest = results.header[DIGEST]
    return Summary(
        method=config["method"]["name"],
        dataset=config["data"]["dataset"],
        rounds=int(rounds[played].max(initial=0)),
        finished=status.finished,
        best=best,
        last=last,
        tail=tail,
        digest=digest,
        seconds_per_round=_compute_mean(seconds[counted_costs][1:]),
        floats_up=_compute_mean(floats_up),
        floats_down=_compute_mean(floats_down[counted_costs]),
        state=status.state,
        notes=[*run.notes, *describe_gaps(run, column)],
        scores=scores,
        newcomers=newcomers,
        best_by=measures.find_best_by(config),
        best_validation=best_validation,
    )


OTHER_COHORTS = (
    "evaluation.clients = 'cohort' scores different clients in each round, so the best "
    "round overestimates; --at tail is a mean over rounds"
)


def describe_gaps(run: "Run", column: str) -> list[str]:
    """Return notes on clients that were left out because they diverged, on rounds with
    different clients, and on last rounds of a column in which no client has a number.
    """
    notes = []
    values = run.results.values
    rounds = run.results.rounds
    diverged = values.columns.get(DIVERGED, np.zeros(0)) == 1
    if diverged.any():
        ids = np.unique(values.ids[diverged]).astype(str).tolist()
        left_out_in = rounds[values.entry_rounds[diverged]]
        notes.append(
            f"{run.folder}: training.on_divergence = 'exclude' left out {len(ids)} of "
            f"{run.config['partition']['clients']} clients in rounds {left_out_in[0]} to "
            f"{left_out_in[-1]}: {list_first(ids)}"
        )
    clients = run.results.get_series(MetricName(CLIENTS, column))
    scored = rounds[np.isfinite(clients)]
    known = scored[clients[np.isfinite(clients)] > 0]
    scores_cohort = run.config["evaluation"].get("clients") == "cohort"
    if scores_cohort and (clients < run.config["partition"]["clients"]).any():
        notes.append(OTHER_COHORTS)
    if scored.size and not known.size:
        notes.append(f"{run.folder}: no client has a number of '{column}' in any round")
    elif known.size and known[-1] < scored[-1]:
        notes.append(
            f"{run.folder}: no client has a number of '{column}' after round {known[-1]}, "
            "which is read as the last round"
        )
    return notes


def _list_numbers(
    results: Results, position: int, column: str
) -> dict[str, float | None]:
    """Return all metrics recorded in a column, by name.

    Args:
        results: results of the run.
        position: position of the round.
        column: name of the column.
    """
    names = sorted(results.names, key=str)
    return {
        name.number: _compute_mean(results.get_series(name)[[position]])
        for name in names
        if name.column == column and not name.of_clients
    }


def _compute_mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values; None without a finite mean."""
    known = values[np.isfinite(values)]
    mean = float(known.mean()) if known.size else np.nan
    return mean if np.isfinite(mean) else None


@dataclass(frozen=True)
class Run:
    """A run read from its folder.

    Attributes:
        folder: folder of the run.
        config: resolved configuration, in the structure of the experiment file.
        results: all recorded results.
        score: primary column, such as ``pre``, ``post`` or ``global``.
        measure: primary metric.
        status: status of the run.
        notes: notes on damaged or lost data.
        own: user's own plugins that may be imported to load models.
    """

    folder: Path
    config: Mapping[str, Any]
    results: Results
    score: str
    measure: Measure
    status: RunStatus
    notes: list[str] = field(default_factory=list)
    own: Collection[str] = ()

    def __repr__(self) -> str:
        """Return three lines: experiment, progress and best result."""
        best = self.summary.best
        result = "no round yet"
        if best:
            result = (
                f"best {self.counted} {best[self.score]:.4f} in round {best['round']}, "
                f"chosen on {self.summary.best_by} samples"
            )
        played = f"{self.summary.rounds} of {self.config['rounds']} rounds"
        return (
            f"{self.folder}: {self.summary.method} on {self.summary.dataset}\n"
            f"{self.summary.state}, {played}\n{result}"
        )

    @cached_property
    def summary(self) -> Summary:
        """Return the summary of the run."""
        return summarise(self)

    @property
    def label(self) -> str:
        """Return the folder's name, which identifies a cell of a sweep."""
        return Path(os.path.abspath(self.folder)).name

    @property
    def counted(self) -> MetricName:
        """Return the name of the primary metric."""
        return MetricName(self.metric, self.score)

    @property
    def scores(self) -> dict[str, Described]:
        """Return descriptions of the computed scores by name; by default the built-in
        scores.
        """
        return list_scores(self.results)

    @property
    def metric(self) -> str:
        """Return the recorded name of the primary metric."""
        return self.measure.recorded

    def accuracy(self, column: str) -> np.ndarray:
        """Return the primary metric in a column: [T] by round, NaN in rounds without
        it.

        Args:
            column: ``pre``, ``post`` or another column that the method has scored.

        Raises:
            UserError: The column was not scored.
        """
        recorded = sorted(
            name.column
            for name in self.results.names
            if name.number == self.metric and not name.of_clients
        )
        if recorded and column not in (*recorded, "pre", "post"):
            raise UserError(
                f"{self.folder}: '{column}' was not scored{suggest(column, recorded)}"
            )
        return self.results.get_series(MetricName(self.metric, column))

    def row(self) -> dict[str, Any]:
        """Return the run as a row of a table: its configuration by dotted key, and
        results.

        * ``column`` and ``metric``: primary column and metric
        * ``best``: the metric on test samples in ``best_round``, which was chosen on
          ``best_by`` samples
        * ``last``: the metric on test samples in ``last_round``
        * ``tail``: mean of the metric over the last tenth of the rounds
        * ``best_validation``: the metric in the best round on held-out training
          samples, or None
        * ``played``: number of played rounds
        """
        summary = self.summary
        best, last, tail = summary.best, summary.last, summary.tail
        return {
            **experiment_file.flatten(self.config),
            "state": summary.state,
            "played": summary.rounds,
            "column": self.score,
            "metric": self.metric,
            "best": best and best[self.score],
            "best_round": best and best["round"],
            "last": last and last[self.score],
            "last_round": last and last["round"],
            "tail": tail and tail[self.score],
            "best_by": summary.best_by,
            "best_validation": summary.best_validation,
            "digest": summary.digest,
            "seconds_per_round": summary.seconds_per_round,
            "floats_up": summary.floats_up,
            "floats_down": summary.floats_down,
        }

    def rounds(self) -> "pandas.DataFrame":
        """Return the recorded metrics of rounds: one row per round, by its number."""
        from hpcfl.trained import frames

        return frames.make_rounds(self.results)

    def clients(self) -> "pandas.DataFrame":
        """Return the recorded metrics of clients: one row for each round and client."""
        from hpcfl.trained import frames

        return frames.make_clients(self.results)

    def model(
        self, client: int | str, moment: str | None = None, at: str | int = "last"
    ) -> "nn.Module":
        """Return a model of the run as a torch module; its forward returns the scored
        logits.

        The round is replayed for this client, so the model is exact on the machine of
        the run.

        Args:
            client: number of a client, or name of a model of the server, such as
                "global" or "class 3".
            moment: column in which the model was scored: ``pre`` or ``post`` local
                training, or another column of the method; None for the primary column.
            at: "last" or "best" round in which it was scored, or number of a round;
                ``checkpoint.every`` and ``checkpoint.keep`` determine the available
                rounds.

        Raises:
            UserError: The model does not exist or its state is not stored.
        """
        return self.models.model(client, moment, at).module

    def predict(
        self,
        client: int | str,
        x: Any,
        moment: str | None = None,
        at: str | int = "last",
    ) -> np.ndarray:
        """Return the classes [n] that a model predicts.

        Args:
            client: client or model of the server, as in ``model``.
            x: samples [n, …] in the format of the data set.
            moment: column, as in ``model``.
            at: round, as in ``model``.

        Raises:
            UserError: The samples have another shape, or an error of ``model``.
        """
        from hpcfl.trained.models import predict_classes

        samples = self.models.convert_samples(x)
        predictions: np.ndarray = predict_classes(
            self.model(client, moment, at), samples
        ).numpy()
        return predictions

    def confusion(
        self, client: int | str, moment: str | None = None, at: str | int = "last"
    ) -> np.ndarray:
        """Return the confusion matrix on test samples: true class i, predicted class j,
        int64 [classes, classes].

        The samples are those of the client; for a model of the server, those of all
        clients.

        Args:
            client: client or model of the server, as in ``model``.
            moment: column, as in ``model``.
            at: round, as in ``model``.
        """
        from hpcfl.trained.models import count_confusion, predict_classes

        trained = self.models.model(client, moment, at)
        x, y = self.models.samples(trained.clients)
        return count_confusion(
            predict_classes(trained.module, x),
            y,
            self.models.replay.prepared.setup.classes,
        )

    @cached_property
    def models(self) -> "RunModels":
        """Return access to all models; the data set remains in memory after the first
        use. Raises UserError for a packed run.
        """
        from hpcfl.trained.models import RunModels

        if self.results.is_packed:
            raise UserError(
                f"{self.folder.parent}: a packed file has no models; pass the run's own folder"
            )
        best = self.summary.best["round"] if self.summary.best else None
        return RunModels(
            folder=self.folder,
            config=self.config,
            results=self.results,
            score=self.score,
            best=best,
            is_finished=self.summary.finished,
            own=self.own,
        )
