"""Numbers of sample gradients that clients compute, counted at their computation."""

import numpy as np
import pytest
import torch

COUNTS = [[8, 3, 0, 0], [0, 4, 0, 0], [1, 0, 6, 6]]
SAMPLES = np.array([11, 4, 13])


def of_clients(played):
    return played.values["clients/sample_gradients"]


@pytest.mark.parametrize("lanes", [1, "auto"])
def test_an_epoch_is_a_gradient_of_each_sample(make_fleet, rows_of, lanes):
    fleet = make_fleet(COUNTS, lanes=lanes)
    fleet.train(rows_of(fleet), epochs=2)
    assert fleet.results.sample_gradients.tolist() == (2 * SAMPLES).tolist()
    fleet.train(
        rows_of(fleet), phase="once more", only=torch.tensor([True, False, True])
    )
    assert fleet.results.sample_gradients.tolist() == [33, 8, 39]


def test_a_share_of_the_samples_and_few_steps_are_fewer_gradients(make_fleet, rows_of):
    """Half of 11, 4 and 13 samples is 5, 2 and 6, of which one step uses at most 4."""
    fleet = make_fleet(COUNTS, batch_size=4)
    fleet.train(rows_of(fleet), share=0.5, steps=1)
    assert fleet.results.sample_gradients.tolist() == [4, 2, 4]


def test_class_gradients_of_the_head_count_each_sample_that_was_drawn(
    make_fleet, rows_of
):
    """Three draws of at most five samples of each class: 5 and 3 of 8 and 3 samples."""
    fleet = make_fleet(COUNTS)
    fleet.head_gradients(rows_of(fleet))
    assert fleet.results.sample_gradients.tolist() == SAMPLES.tolist()
    fleet.head_gradients(rows_of(fleet), draws=(3, 5))
    of_draws = [3 * (5 + 3), 3 * 4, 3 * (1 + 5 + 5)]
    assert fleet.results.sample_gradients.tolist() == (SAMPLES + of_draws).tolist()


# by hand, for each sample of a client that trains for one epoch
OF_METHODS = {
    "fedavg": ({}, 1),
    # two epochs on the personal model in addition to the shared model
    "ditto": ({"personal_epochs": 2}, 3),
    # three steps for each mini-batch
    "pfedme": ({"inner_steps": 3}, 3),
    # at the client's model and at the mixed model
    "apfl": ({}, 2),
    # two epochs on the head before the one on the body
    "fedrep": ({"head_epochs": 2}, 3),
}


@pytest.mark.parametrize("method", OF_METHODS)
def test_gradients_of_a_round_by_hand(federate, method):
    keys, each = OF_METHODS[method]
    played = federate({"name": method, **keys}, COUNTS, rounds=2)
    for row in of_clients(played)[:2]:
        assert row.tolist() == (each * SAMPLES).tolist()
    assert played.values["sample_gradients"].tolist() == [28 * each, 28 * each, 0]


def test_gradients_of_scores_are_counted_apart(federate):
    """In round 2 and after it start models are tuned for three epochs in total."""
    played = federate(
        "fedavg",
        COUNTS,
        rounds=2,
        evaluation={"every": 2, "tune_epochs": [0, 1, 2]},
    )
    every, scores = (
        played.values[f"{number}sample_gradients"].tolist()
        for number in ("", "scoring_")
    )
    assert every == [28, 4 * 28, 3 * 28]
    assert np.nan_to_num(scores).tolist() == [0, 3 * 28, 3 * 28]


def test_tuning_for_scores_counts_for_clients_that_did_not_train(federate):
    """One of three clients takes part and tunes its start model for three epochs in
    every round. The other clients are tuned when they are scored, in round 2 and after
    it.
    """
    played = federate(
        {"name": "fedavg-c", "tune_epochs": 3},
        COUNTS,
        rounds=2,
        participation={"fraction": 0.34},
        evaluation={"every": 2},
    )
    trained = np.isfinite(played.values["clients/train_loss"])
    first, second, final = of_clients(played)
    assert trained.sum(axis=1).tolist() == [1, 1, 0]
    of_scores = played.values["clients/scoring_sample_gradients"]
    assert np.isnan(of_scores[0]).all()
    # the participating client tunes its start model in order to train from it, not for
    # a score
    assert np.nan_to_num(of_scores[1]).tolist() == (3 * SAMPLES * ~trained[1]).tolist()
    assert of_scores[2].tolist() == final.tolist()
    assert np.nan_to_num(first).tolist() == (4 * SAMPLES * trained[0]).tolist()
    assert second.tolist() == (SAMPLES * (3 + trained[1])).tolist()
    assert final.tolist() == (3 * SAMPLES).tolist()
