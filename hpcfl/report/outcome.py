"""The results of a run in a few numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcfl.experiment import measures
from hpcfl.scores._described import Measure
from hpcfl.scores._metric_name import FLOATS_UP, SECONDS, MetricName, held_out
from hpcfl.storage.result_rounds import AFTER, BEFORE, find_result_rounds
from hpcfl.storage.results import DIGEST, Results
from hpcfl.storage.run_status import RunStatus


@dataclass(frozen=True)
class Summary:
    """A run in a few numbers; None where nothing is known yet. Accuracies are in [0,
    1].

    The column that counts is ``evaluation.score`` or the method's own; the number in it
    that counts is ``evaluation.metric``. ``best`` is the round that is best by it,
    ``last`` the last round that has it, both as ``{"round", "pre", "post"}`` with that
    number before and after local training, and in the column that counts if it is
    another. ``tail`` has the means over the last tenth of the rounds, with
    ``"rounds"``, the first and the last of them. The models after the last aggregation
    count as round R + 1, which most methods score only before training.
    """

    method: str
    dataset: str
    rounds: int  # how many were played
    finished: bool
    best: dict[str, Any] | None
    last: dict[str, Any] | None
    tail: dict[str, Any] | None
    digest: str | None  # of the state in the newest checkpoint
    seconds_per_round: float | None  # mean wall time, without the first round
    floats_up: float | None  # from a client that takes part, in a round, on average
    floats_down: float | None  # to a client in a round, on average
    state: str  # one word, see ``storage/run_status.py``
    notes: list[str]  # what is damaged or lost
    # of the column that counts, in ``best``
    scores: dict[str, float | None] = field(default_factory=dict)
    # the number that counts, of clients never trained with, before and after a training
    # of their own
    newcomers: dict[str, float | None] | None = None
    # the samples that ``best`` is chosen on; its numbers are of test samples anyway
    best_by: str = "test"
    # the number that counts in ``best``, of held-out training samples
    best_validation: float | None = None


def summarise(
    config: Mapping[str, Any],
    results: Results,
    column: str,
    measure: Measure,
    status: RunStatus,
    notes: list[str],
) -> Summary:
    """Summarise a run.

    Args:
        config: Resolved.
        results: Everything recorded.
        column: The column that counts.
        measure: The number in it that counts.
        status: How far the run is.
        notes: What is damaged or lost.
    """

    def numbers_of(column: str) -> np.ndarray:
        return results.series(MetricName(measure.recorded, column))

    def means(positions: list[int]) -> dict[str, float | None]:
        columns = dict.fromkeys(["pre", "post", column])
        return {name: _mean(numbers_of(name)[positions]) for name in columns}

    rounds, played = results.rounds, results.played
    chosen = numbers_of(measures.chosen_in(config, column))
    counted = find_result_rounds(rounds, numbers_of(column), measure.rank, chosen)
    best = last = tail = best_validation = None
    scores: dict[str, float | None] = {}
    if counted is not None:
        best = {"round": int(rounds[counted.best]), **means([counted.best])}
        last = {"round": int(rounds[counted.last]), **means([counted.last])}
        ends = [counted.tail[0], counted.tail[-1]]
        tail = {"rounds": rounds[ends].tolist(), **means(counted.tail)}
        best_validation = _mean(numbers_of(held_out(column))[[counted.best]])
        scores = _all_of(results, counted.best, column)
    newcomers = None
    if MetricName(measure.recorded, BEFORE) in results.names:
        newcomers = {
            "before": _mean(numbers_of(BEFORE)[-1:]),
            "after": _mean(numbers_of(AFTER)[-1:]),
        }
    seconds = results.series(MetricName("round", SECONDS))
    of_clients = results.select_rounds(np.flatnonzero(played)).clients.columns
    floats_up = of_clients.get(FLOATS_UP, np.zeros(0))
    floats_down = results.series(MetricName("floats_down"))
    prolonged = status.finished and status.done != status.rounds_requested
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
        seconds_per_round=_mean(seconds[played][1:]),
        floats_up=_mean(floats_up),
        floats_down=_mean(floats_down[played]),
        state=status.state,
        notes=notes,
        scores=scores,
        newcomers=newcomers,
        best_by=measures.best_by(config),
        best_validation=best_validation,
    )


def _all_of(results: Results, position: int, column: str) -> dict[str, float | None]:
    """Return all numbers that were recorded of a column in the round at ``position``, by name."""
    names = sorted(results.names, key=str)
    return {
        name.number: _mean(results.series(name)[[position]])
        for name in names
        if name.column == column and not name.of_clients
    }


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values; None if none is, or if it is no float."""
    known = values[np.isfinite(values)]
    mean = float(known.mean()) if known.size else np.nan
    return mean if np.isfinite(mean) else None
