"""Scores that an experiment records, and the metric that selects its best round."""

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
# Built-in scores that are always recorded, those of runs whose clients share the test
# samples, and those of runs with an attack that measures its success.
BY_DEFAULT, ON_SHARED_TEST = ("accuracy", "loss"), ("pm_l", "pm_v")
ON_ATTACK = ("attack_success",)


@cache
def find_built_in(name: str) -> "Score | None":
    """Return the built-in score of this name, or None."""
    if name not in plugins.list_names(PACKAGE):
        return None
    score: Score = plugins.find(PACKAGE, "evaluation.scores", name)()
    return score


def list_built_in(names: Iterable[str] | None = None) -> "dict[str, Score]":
    """Return the built-in scores of these names, by default all, by name."""
    found = {}
    for name in plugins.list_names(PACKAGE) if names is None else names:
        score = find_built_in(name)
        if score is not None:
            found[name] = score
    return found


def find_scores(evaluation: "Evaluation") -> "dict[str, Score]":
    """Return the scores in ``evaluation.scores`` and ``evaluation.metric``, by name.

    Raises UserError for unknown names and for an invalid class of the user.
    """
    scores = {
        name: _make_score("evaluation.scores", name) for name in evaluation.scores
    }
    name = parse_score(evaluation.metric)
    if ":" in name:
        scores[name] = _make_score("evaluation.metric", name)
    known = list_built_in() | scores
    best_by = find_measure(evaluation, known)
    return scores | {best_by.score: known[best_by.score]}


def find_measure(evaluation: "Evaluation", scores: "Mapping[str, Score]") -> Measure:
    """Return the measure of ``evaluation.metric``, which selects the best round.

    Raises UserError for an unknown metric and for a standard deviation.
    """
    described = describe(scores)
    meant = resolve(evaluation.metric, described)
    if meant is None or meant.kind == "std":
        described = describe(list_built_in()) | described
        short = []  # names of summaries that do not begin with the score's name
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


def find_best_by(config: Mapping[str, Any]) -> str:
    """Return the samples that select the best round, "test" or "validation", in a
    resolved configuration.
    """
    asked = config["evaluation"].get("best_by")
    held_out = config.get("training", {}).get("validation")
    if asked == "validation" or (asked is None and held_out):
        return "validation"
    return "test"


def find_chosen_column(config: Mapping[str, Any], column: str) -> str:
    """Return the column that selects the best round if ``column`` is the primary one."""
    return name_held_out(column) if find_best_by(config) == "validation" else column


def check_best_by(evaluation: "Evaluation", training: "Training") -> None:
    """Raise UserError if the best round needs held-out samples that do not exist."""
    if evaluation.best_by == "validation" and not training.validation:
        raise UserError(
            "evaluation.best_by = 'validation': no samples are held out; set "
            "training.validation = 0.1 or another share"
        )


def describe(scores: "Mapping[str, Score]") -> dict[str, Described]:
    """Return the description of each score that a run stores beside its results."""
    return {name: score.described(name) for name, score in scores.items()}


def _make_score(key: str, name: str) -> "Score":
    """Return the score of a name.

    Args:
        key: The key of the configuration, for error messages.
        name: The name, built-in or a user's ``module:Class``.

    Raises:
        UserError: The name is unknown, or a user's class has an invalid ``unit``,
            ``better`` or ``summaries``.
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
            f"{user_code.locate(error, kind)}{key} = '{name}' cannot be used: "
            f"{user_code.describe_error(error)}"
        ) from error
    return score
