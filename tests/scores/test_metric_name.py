"""A name is written as it is read, part by part."""

import pytest

from hpcfl.scores.metric_name import (
    MetricName,
    held_out,
    is_held_out,
    is_of_newcomers,
    models_of,
    of_newcomers,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("floats_down", MetricName("floats_down")),
        ("pre/weighted", MetricName("weighted", "pre")),
        ("seconds/round", MetricName("round", "seconds")),
        ("pre/clients", MetricName("clients", "pre")),
        ("validation/post/loss_std", MetricName("loss_std", "validation/post")),
        ("newcomers/after/mean", MetricName("mean", "newcomers/after")),
        ("clients/floats_up", MetricName("floats_up", of_clients=True)),
        ("clients/post/correct", MetricName("correct", "post", of_clients=True)),
        (
            "clients/validation/pre/own:Score",
            MetricName("own:Score", "validation/pre", of_clients=True),
        ),
    ],
)
def test_the_parts_of_a_name(text, name):
    assert MetricName.parse(text) == name and str(name) == text


def test_a_column_is_of_models_and_of_samples_or_clients():
    assert is_held_out(held_out("pre")) and not is_held_out("pre")
    assert models_of(held_out("pre")) == models_of("pre") == "pre"
    assert is_of_newcomers(of_newcomers("after")) and not is_of_newcomers("after")
    assert not is_held_out(of_newcomers("after"))
