"""The scores that an experiment names, and the number that selects the best round."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import plugins, user_code
from hpcfl.scores.metric_names import (
    Described,
    Measure,
    name_held_out,
    parse_score,
    resolve,
)

if TYPE_CHECKING:
    from hpcfl.experiment.sections import Evaluation, Training
    from hpcfl.scores.base import Score

PACKAGE = "hpcfl.scores"
# The built-in scores that every run computes, and those that it computes where all
# clients are tested on the same samples, or where an attack has a success.
BY_DEFAULT, ON_SHARED_TEST = ("accuracy", "loss"), ("pm_l", "pm_v")
ON_ATTACK = ("attack_success",)


@cache
def find_built_in(name: str) -> "Score | None":
    """Return the score in a file of the package; None for other names."""
    if name not in plugins.names(PACKAGE):
        return None
    score: Score = plugins.find(PACKAGE, "evaluation.scores", name)()
    return score


def built_in(names: Iterable[str] | None = None) -> "dict[str, Score]":
    """Return scores of the package by name, by default all."""
    found = {}
    for name in plugins.names(PACKAGE) if names is None else names:
        score = find_built_in(name)
        if score is not None:
            found[name] = score
    return found


def asked(evaluation: "Evaluation") -> "dict[str, Score]":
    """Return the scores that the section ``[evaluation]`` names, by name.

    They are those of ``scores`` and ``metric``. Raises UserError for unknown names and
    for an unusable score of the user.
    """
    scores = {name: _made("evaluation.scores", name) for name in evaluation.scores}
    name = parse_score(evaluation.metric)
    if ":" in name:
        scores[name] = _made("evaluation.metric", name)
    known = built_in(_may_mean(evaluation.metric)) | scores
    best_by = measure(evaluation, known)
    return scores | {best_by.score: known[best_by.score]}


def _may_mean(metric: str) -> list[str]:
    """Return the built-in scores of which a metric may be a number.

    Its name begins with that of its score, except for the accuracy.
    """
    return [
        name
        for name in plugins.names(PACKAGE)
        if name == "accuracy" or metric.startswith(name)
    ]


def measure(evaluation: "Evaluation", scores: "Mapping[str, Score]") -> Measure:
    """Return the number of ``evaluation.metric``, which selects the best round.

    Raises UserError for a name of no score, and for a standard deviation.
    """
    described = describe(scores)
    meant = resolve(evaluation.metric, described)
    if meant is None or meant.kind == "std":
        described = describe(built_in()) | described
        short = []  # names of summaries that do not begin with their score's
        for score, description in described.items():
            for kind, name in description["recorded"].items():
                if kind != "std" and not name.startswith(score):
                    short.append(name)
        hint = suggest(evaluation.metric, [*described, *short])
        raise UserError(
            f"evaluation.metric = '{evaluation.metric}' is unknown{hint}, SCORE/worst_tenth, "
            "or your own 'module:Class'"
        )
    return meant


def best_by(config: Mapping[str, Any]) -> str:
    """Return the samples that choose the best round: "test" or "validation".

    config: a resolved configuration.
    """
    asked = config["evaluation"].get("best_by")
    held_out = config.get("training", {}).get("validation")
    if asked == "validation" or (asked is None and held_out):
        return "validation"
    return "test"


def chosen_in(config: Mapping[str, Any], column: str) -> str:
    """Return the column that chooses the best round if ``column`` is the primary one."""
    return name_held_out(column) if best_by(config) == "validation" else column


def check_best_by(evaluation: "Evaluation", training: "Training") -> None:
    """Raise UserError if the best round needs held-out samples that do not exist."""
    if evaluation.best_by == "validation" and not training.validation:
        raise UserError(
            "evaluation.best_by = 'validation': nothing is held out to choose on; set "
            "training.validation = 0.1 or another share"
        )


def describe(scores: "Mapping[str, Score]") -> dict[str, Described]:
    """Return the description of each score for readers of results, by its name."""
    return {name: score.described(name) for name, score in scores.items()}


def _made(key: str, name: str) -> "Score":
    """Return a score by its name; a user's score must have valid unit, direction,
    summaries.

    key: of the configuration, for errors. Raises UserError.
    """
    known = find_built_in(name)
    if known is not None:
        return known
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
        raise UserError(
            f"{user_code.locate(kind, error)}{key} = '{name}' cannot be used: "
            f"{user_code.describe_error(error)}"
        ) from error
    return score
