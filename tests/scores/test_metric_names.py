"""Written names of metrics can be read again, and a score is found by its names."""

import pytest

from hpcfl.experiment import measures
from hpcfl.scores.metric_names import (
    MetricName,
    is_held_out,
    is_of_newcomers,
    is_trained,
    name_attackers,
    name_held_out,
    name_newcomers,
    resolve,
    strip_held_out,
)

BUILT_IN = measures.describe(measures.list_built_in())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("floats_down", MetricName("floats_down")),
        ("validation/post/loss_std", MetricName("loss_std", "validation/post")),
        (
            "clients/validation/pre/own:Score",
            MetricName("own:Score", "validation/pre", of_clients=True),
        ),
    ],
)
def test_the_parts_of_a_name(text, name):
    assert MetricName.parse(text) == name and str(name) == text


def test_a_column_is_of_models_and_of_samples_or_clients():
    assert is_held_out(name_held_out("pre")) and not is_held_out("pre")
    assert strip_held_out(name_held_out("pre")) == strip_held_out("pre") == "pre"
    assert is_of_newcomers(name_newcomers("after")) and not is_of_newcomers("after")
    assert not is_held_out(name_newcomers("after"))
    assert is_trained(name_held_out("post")) and is_trained(name_attackers("post"))
    assert not is_trained(name_held_out("pre")) and not is_trained("tuned_5")


@pytest.mark.parametrize(
    ("wanted", "recorded"),
    [
        ("weighted", "weighted"),
        ("accuracy", "weighted"),
        ("accuracy/mean", "mean"),
        ("macro_f1/mean", "macro_f1"),
        ("macro_f1/worst_tenth", "macro_f1_worst_tenth"),
        ("macro_f1_worst_tenth", "macro_f1_worst_tenth"),
    ],
)
def test_a_number_by_its_names(wanted, recorded):
    assert resolve(wanted, BUILT_IN).recorded == recorded


@pytest.mark.parametrize("wanted", ["macro_f2", "macro_f1/best", "weighted/mean", "/"])
def test_unknown_metric_names_are_not_resolved(wanted):
    assert resolve(wanted, BUILT_IN) is None


def test_format_and_direction_of_metrics():
    accuracy, loss = resolve("mean", BUILT_IN), resolve("loss", BUILT_IN)
    assert accuracy.format(0.98765) == "98.77" and loss.format(0.98765) == "0.9877"
    assert accuracy.orient(2) > accuracy.orient(1)
    assert loss.orient(1) > loss.orient(2)
    assert resolve("std", BUILT_IN).better == "down"  # clients with equal values
