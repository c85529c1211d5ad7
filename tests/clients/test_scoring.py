"""Scores compared with plain loops."""

from unittest import mock

import pytest
import torch
from methods.by_hand import build_model

from hpcfl.clients import scoring

every_kernel = pytest.mark.parametrize("lanes", [1, 2, "auto"])


def features(model, x, lane):
    return model.features(x)


def losses(fleet, name):
    """Return the sums of losses and the numbers of samples of a score, [clients, 2]."""
    return fleet.results.scores[name]["loss"]


@every_kernel
def test_score_against_a_loop(make_fleet, rows_of, lanes):
    fleet = make_fleet(lanes=lanes)
    rows = rows_of(fleet)
    fleet.score("pre", rows)
    correct, total = fleet.results.scores["pre"]["accuracy"].T
    loss, same = losses(fleet, "pre").T
    assert torch.equal(total, same)
    samples = fleet.resources.samples
    for client in range(5):
        x, y = samples.take(samples.test[client])
        logits = build_model(fleet.setup, rows[client])(x)
        assert total[client] == len(y) == 20 * (fleet.counts[client] > 0).sum()
        assert correct[client] == (logits.argmax(1) == y).sum()
        expected = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
        torch.testing.assert_close(loss[client].float(), expected)


@every_kernel
def test_a_client_with_a_nan_model_has_no_scores(make_fleet, rows_of, lanes):
    """Otherwise the class with the largest logit would be 0, and its samples would
    count as correct.
    """
    fleet = make_fleet(lanes=lanes)
    rows = rows_of(fleet)
    fleet.score("all", rows)
    fleet.score("some", rows.index_fill(0, torch.tensor([3]), torch.nan))
    for name, sums in fleet.results.scores["some"].items():
        assert sums[3].isnan().all()
        others = [0, 1, 2, 4]
        assert torch.equal(sums[others], fleet.results.scores["all"][name][others])


@every_kernel
def test_a_methods_prediction_receives_the_lanes_variables(make_fleet, rows_of, lanes):
    fleet = make_fleet(lanes=lanes)
    wanted = torch.tensor([0, 1, 2, 3, 0])
    fleet.score(
        "constant",
        rows_of(fleet),
        lambda model, x, lane: lane.wanted.expand(len(x), -1),
        variables={"wanted": torch.nn.functional.one_hot(wanted, 4).float()},
    )
    held = fleet.counts[torch.arange(5), wanted] > 0
    correct = fleet.results.scores["constant"]["accuracy"][:, 0]
    assert torch.equal(correct, 20.0 * held.double())


def test_rounds_that_are_not_scored_cost_nothing(make_fleet, rows_of):
    fleet = make_fleet()
    fleet.scoring.is_due = False
    fleet.score("pre", rows_of(fleet), lambda model, x, lane: pytest.fail("was scored"))
    assert fleet.results.scores == {}


def test_a_model_of_two_names_is_scored_once(make_fleet, rows_of, monkeypatch):
    fleet = make_fleet()
    scored, score = [], scoring.score_chunk
    monkeypatch.setattr(
        scoring, "score_chunk", lambda *given: scored.append(1) or score(*given)
    )
    fleet.score(("pre", "global"), rows_of(fleet))
    often = len(scored)
    assert fleet.results.scores["global"] is fleet.results.scores["pre"] and often == 1
    fleet.score("post", rows_of(fleet))
    assert len(scored) == 2 * often


def test_clients_are_scored_together_as_one_by_one(make_fleet, rows_of, monkeypatch):
    """Test sets of 40, 40, 60, 40 and 80 samples: two whole blocks, then remainders of
    8, 8, 8 and 16.
    """
    monkeypatch.setattr(scoring, "BLOCK", 32)
    found = []
    for lanes in ("auto", 1):
        fleet = make_fleet(lanes=lanes)
        kernel, rows = fleet.resources.kernel, rows_of(fleet)
        predict = mock.Mock(side_effect=kernel.predict)
        monkeypatch.setattr(kernel, "predict", predict)
        fleet.score("post", rows)
        found.append((losses(fleet, "post"), fleet.class_means(rows, features)))
        blocks = [call.args[1].shape[:2] for call in predict.mock_calls]
        if lanes == "auto":
            assert blocks == [(5, 32), (2, 32), (4, 16), (1, 32), (4, 16)]
    torch.testing.assert_close(*found)


def test_models_that_do_not_fit_are_scored_in_fewer_lanes(
    make_fleet, rows_of, monkeypatch
):
    fleet = make_fleet(lanes=4)
    rows, kernel = rows_of(fleet), fleet.resources.kernel
    expected = fleet.outputs(rows, features)
    predict = kernel.predict

    def refuse_many(tensors, x, *further):
        if len(x) > 2:
            raise torch.OutOfMemoryError("full")
        return predict(tensors, x, *further)

    monkeypatch.setattr(kernel, "predict", refuse_many)
    found = fleet.outputs(rows, features)
    assert kernel.widest == 2
    torch.testing.assert_close(found, expected)


def test_rows_changed_in_place_are_scored_again(make_fleet, rows_of):
    fleet = make_fleet()
    rows = rows_of(fleet)
    fleet.score("before", rows)
    rows *= 2
    fleet.score("after", rows)
    assert not torch.equal(losses(fleet, "after"), losses(fleet, "before"))
