"""The scores that an experiment asks for by name, and which of their numbers selects the
best round.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UserError
from hpcfl.experiment import blame, plugins
from hpcfl.experiment.sections import Evaluation, Training
from hpcfl.scores._described import Described, Measure, resolve, score_of
from hpcfl.scores._metric_name import held_out

if TYPE_CHECKING:
    from hpcfl.scores.base import Score

PACKAGE = "hpcfl.scores"


@cache
def built_in() -> "dict[str, Score]":
    """All scores of the package by name."""
    return {
        name: plugins.find(PACKAGE, "evaluation.scores", name)()
        for name in plugins.names(PACKAGE)
    }


def asked(evaluation: Evaluation) -> "dict[str, Score]":
    """The scores that ``scores`` and ``metric`` of the section ``[evaluation]`` name,
    by name.

    Raises UserError for names that mean nothing, and for a user's own score that cannot
    be used.
    """
    scores = {name: _made("evaluation.scores", name) for name in evaluation.scores}
    name = score_of(evaluation.metric)
    if ":" in name:
        scores[name] = _made("evaluation.metric", name)
    known = built_in() | scores
    best_by = measure(evaluation, known)
    return scores | {best_by.score: known[best_by.score]}


def measure(evaluation: Evaluation, scores: "Mapping[str, Score]") -> Measure:
    """The number that ``evaluation.metric`` means, which decides what the best round
    is.

    Raises UserError where it is none of the scores' numbers, or a standard deviation.
    """
    described = describe(scores)
    meant = resolve(evaluation.metric, described)
    if meant is None or meant.kind == "std":
        short = []  # names of summaries that do not begin with their score's
        for score, description in described.items():
            for kind, name in description["recorded"].items():
                if kind != "std" and not name.startswith(score):
                    short.append(name)
        hint = plugins.nearest(evaluation.metric, [*described, *short])
        raise UserError(
            f"evaluation.metric = '{evaluation.metric}' is unknown{hint}, SCORE/worst_tenth, "
            "or your own 'module:Class'"
        )
    return meant


def best_by(config: Mapping[str, Any]) -> str:
    """On which samples the best round of a resolved configuration is chosen: "test" or
    "validation".
    """
    asked = config["evaluation"].get("best_by")
    held_out = config.get("training", {}).get("validation")
    if asked == "validation" or (asked is None and held_out):
        return "validation"
    return "test"


def chosen_in(config: Mapping[str, Any], column: str) -> str:
    """The column in which the best round is chosen, where ``column`` is the one that
    counts.
    """
    return held_out(column) if best_by(config) == "validation" else column


def check_best_by(evaluation: Evaluation, training: Training) -> None:
    """Raises UserError where the best round is to be chosen on samples that nobody
    holds out.
    """
    if evaluation.best_by == "validation" and not training.validation:
        raise UserError(
            "evaluation.best_by = 'validation': nothing is held out to choose on; set "
            "training.validation = 0.1 or another share"
        )


def describe(scores: "Mapping[str, Score]") -> dict[str, Described]:
    """What readers of results need to know of each score, by its name."""
    return {name: score.described(name) for name, score in scores.items()}


def _made(key: str, name: str) -> "Score":
    """A score by its name; a user's own must have a unit, a direction and summaries
    that are valid.

    key: of the configuration, for errors. Raises UserError.
    """
    if name in built_in():
        return built_in()[name]
    kind = plugins.find(PACKAGE, key, name)
    try:
        score: Score = kind()
        if score.better not in ("up", "down"):
            raise ValueError(f"better = {score.better!r}: must be 'up' or 'down'")
        if not isinstance(score.unit, str) or len(score.unit) > 20:
            raise ValueError(
                f"unit = {score.unit!r}: must be a text of at most 20 letters"
            )
        if not isinstance(score.summaries, tuple) or not score.summaries:
            raise ValueError(
                f"summaries = {score.summaries!r}: must be a tuple of names"
            )
    except Exception as error:
        place = blame.line_of(error) or blame.definition_of(kind)
        text = f"{key} = '{name}' cannot be used: {blame.said(error)}"
        raise UserError(f"{place}: {text}" if place else text) from error
    return score
