"""Clients of a rank as methods use them."""

import re

import pytest
import torch
from refusals import expect_refusal

COUNTS = [[8, 3, 0, 0], [0, 4, 0, 0], [1, 0, 6, 6]]


def test_a_phase_is_trained_once(make_fleet, rows_of):
    fleet = make_fleet()
    fleet.train(rows_of(fleet))
    with pytest.raises(ValueError, match="phase 'train' "):
        fleet.train(rows_of(fleet))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            lambda fleet, rows: fleet.train(rows[:4]),
            "rows of models have shape [4, 64]; ",
        ),
        (
            lambda fleet, rows: fleet.score("post", rows[:, 1:]),
            "rows of models have shape [5, 63]",
        ),
        (
            lambda fleet, rows: fleet.train(rows, variables={"own": rows[0]}),
            "variable 'own' has shape [64]; ",
        ),
        (
            lambda fleet, rows: fleet.score(
                "post", rows, variables={"own": torch.ones(())}
            ),
            "variable 'own' has shape []",
        ),
        (
            lambda fleet, rows: fleet.record("norm", torch.ones(3)),
            "recorded 'norm' has shape [3]; ",
        ),
        (
            lambda fleet, rows: fleet.record("norm", torch.ones(5, 1)),
            "recorded 'norm' has shape [5, 1]; ",
        ),
        (
            lambda fleet, rows: fleet.train(rows, only=torch.zeros(5, 1) > 0),
            "only = bool [5, 1]; ",
        ),
        (
            lambda fleet, rows: fleet.train(rows, only=torch.arange(5)),
            "only = int64 [5]; ",
        ),
        (lambda fleet, rows: fleet.train(rows, epochs=2.5), "epochs = 2.5; "),
        (lambda fleet, rows: fleet.train(rows, steps=-1), "steps = -1; "),
        (lambda fleet, rows: fleet.train_by(print, rows, batches=0), "batches = 0; "),
        (lambda fleet, rows: fleet.train(rows, share=20), "share = 20; "),
        (
            lambda fleet, rows: fleet.train_by(print, rows, frozen="train"),
            "frozen = 'train'; ",
        ),
        (lambda fleet, rows: fleet.record("pre/norm", rows[:, 0]), "'pre/norm'"),
    ],
)
def test_values_that_would_be_misread_are_refused(make_fleet, rows_of, use, words):
    fleet = make_fleet()
    with pytest.raises(ValueError, match=re.escape(words)):
        use(fleet, rows_of(fleet))


@pytest.mark.parametrize("names", [("norm", "norm_std"), ("norm_std", "norm")])
def test_a_recorded_number_has_no_name_of_a_deviation(make_fleet, rows_of, names):
    fleet = make_fleet()
    values = rows_of(fleet)[:, 0]
    fleet.record(names[0], values)
    fleet.record(names[0], values)
    with pytest.raises(ValueError, match="norm"):
        fleet.record(names[1], values)


@pytest.mark.parametrize(
    ("keys", "rate"),
    [({}, 0.1), ({"plain_lr": 0.3}, 0.3), ({"plain_lr": 0.3, "lr_decay": 0.5}, 0.075)],
)
def test_the_plain_steps_of_a_method_have_a_separate_rate(make_fleet, keys, rate):
    assert make_fleet(lr=0.1, round=3, **keys).learning_rate == pytest.approx(rate)


def test_a_rate_of_plain_steps_is_not_the_optimisers(make_fleet, rows_of):
    plain, other = make_fleet(lr=0.1), make_fleet(lr=0.1, plain_lr=0.3)
    assert torch.equal(plain.train(rows_of(plain)), other.train(rows_of(other)))


def test_gradients_computed_in_a_trial_are_counted(make_fleet, rows_of):
    fleet = make_fleet(COUNTS)
    with fleet.trial():
        fleet.train(rows_of(fleet))
    assert fleet.results.sample_gradients.tolist() == [11, 4, 13]


def test_two_models_with_one_column_are_refused(make_fleet, rows_of):
    fleet = make_fleet()
    fleet.score("mine", rows_of(fleet))
    with expect_refusal(r"fleet\.score\('mine', "):
        fleet.score(("other", "mine"), rows_of(fleet))


@pytest.mark.parametrize(
    "column",
    ["time", "recorded", "clients", "validation/pre", "", "final", "bytes_up"],
)
def test_columns_of_other_numbers_are_refused(make_fleet, rows_of, column):
    fleet = make_fleet()
    with expect_refusal(rf"fleet\.score\('{column}', "):
        fleet.score(("mine", column), rows_of(fleet))
