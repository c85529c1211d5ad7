"""The rounds at which a run's result is read: the best, the last, and the last tenth.

Taking the best round of a noisy metric overestimates it; the others do not.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.experiment import measures
from hpcfl.scores.metric_names import (
    CLIENTS,
    Described,
    Measure,
    MetricName,
    of_newcomers,
    resolve,
)
from hpcfl.storage.results import Metrics, Results

TAIL = 0.1  # share of the rounds
# columns of clients that were never trained with
BEFORE, AFTER = of_newcomers("before"), of_newcomers("after")


@dataclass(frozen=True)
class ResultRounds:
    """Positions among a run's rounds: the best, the last with the metric, and the last
    tenth.
    """

    best: int
    last: int
    tail: list[int]


def find_result_rounds(
    rounds: np.ndarray,
    numbers: np.ndarray,
    rank: Callable[[float], float],
    chosen: np.ndarray | None = None,
) -> ResultRounds | None:
    """Return the result rounds of ``numbers`` [T], or None if all are missing.

    Args:
        numbers: The metric in each of ``rounds`` [T]; NaN where it is missing.
        rank: Orders numbers, higher for a better one; of equals the first is the best.
        chosen: The numbers [T] that choose the best round, if others, such as those of
            validation samples.
    """
    chosen = numbers if chosen is None else chosen
    known = np.flatnonzero(np.isfinite(numbers))
    candidates = known[np.isfinite(chosen[known])]
    if not candidates.size:
        return None
    best = max(candidates.tolist(), key=lambda position: rank(float(chosen[position])))
    last = int(known[-1])
    first = rounds[last] - ceil(TAIL * rounds[last])  # the tail is after this round
    return ResultRounds(best, last, known[rounds[known] > first].tolist())


def positions(
    rounds: np.ndarray, numbers: np.ndarray, best: int | None, at: str
) -> list[int]:
    """Return the positions of the rounds at which ``numbers`` [T] of a run are read.

    best: the run's best round. at: "best", "last" or "tail". If the best round lacks
    the metric, the latest round before it counts. The last round and the last tenth
    consist of rounds with the metric. The result is empty without such rounds.
    """
    if best is None:
        return []
    counted = np.where(rounds <= best, numbers, np.nan) if at == "best" else numbers
    found = find_result_rounds(rounds, counted, float)
    if found is None:
        return []
    return found.tail if at == "tail" else [found.last]


def compute_client_scores(
    results: Results, column: str, score: str
) -> np.ndarray | None:
    """Return each client's score in a column, [T, clients]; None if it was not
    recorded.
    """
    metrics = results.metrics
    numbers = compute_entry_scores(metrics, column, score)
    if numbers is None:
        return None
    return replace(metrics, columns={score: numbers})[score]


def compute_entry_scores(
    recorded: Metrics, column: str, score: str
) -> NDArray[np.float64] | None:
    """Return a score in a column for each entry of ``recorded``, [N]; None if missing.

    A user's own score is recorded under its name; a built-in score is computed from
    other recorded metrics.
    """
    numbers = {}
    for text, values in recorded.columns.items():
        name = MetricName.parse(text)
        if name.column == column:
            numbers[name.number] = values.astype(float)
    known = measures.find_built_in(score)
    try:
        return known.of_clients(score, numbers) if known else numbers[score]
    except KeyError:
        return None


def scores(results: Results) -> dict[str, Described]:
    """Return the scores that the results list; by default the built-in ones."""
    return results.header.get("scores") or measures.describe(measures.built_in())


def counts(evaluation: dict[str, Any], results: Results) -> tuple[str, Measure]:
    """Return the primary column and the measure of its primary metric.

    evaluation: the section of the configuration.
    """
    column = (
        results.header.get("primary", "pre")
        if evaluation["score"] == "method"
        else evaluation["score"]
    )
    metric = evaluation["metric"]
    return column, resolve(metric, scores(results)) or Measure(
        metric,
        "",
        metric,
        "",
        "up",
    )


def outcome(results: Results) -> dict[str, Any]:
    """Return the header entry ``outcome``, the primary metric at the result rounds, or {}."""
    if "config" not in results.header:
        return {}
    column, measure = counts(results.header["config"]["evaluation"], results)
    name = MetricName(measure.recorded, column)
    numbers = results.series(name)
    chosen_in = measures.chosen_in(results.header["config"], column)
    chosen = results.series(MetricName(measure.recorded, chosen_in))
    found = find_result_rounds(results.rounds, numbers, measure.rank, chosen)
    if found is None:
        return {}
    clients = results.series(MetricName(CLIENTS, column))

    def summarize(positions: list[int]) -> dict[str, Any]:
        count = float(clients[positions].mean())
        return {
            "rounds": [
                int(results.rounds[positions[0]]),
                int(results.rounds[positions[-1]]),
            ],
            "value": float(numbers[positions].mean()),
            "clients": count if np.isfinite(count) else None,
        }

    return {
        "outcome": {
            "name": str(name),
            "best": summarize([found.best]),
            "last": summarize([found.last]),
            "tail": summarize(found.tail),
        }
    }
