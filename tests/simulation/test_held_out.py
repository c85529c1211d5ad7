"""Best rounds selected on held-out training samples."""

import numpy as np
import pytest
import tiny
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.experiment import measures
from hpcfl.report import tables
from hpcfl.storage.manifest import find_latest

HELD_OUT = {"lr": 0.5, "validation": 0.25}


def parts(method="fedavg", counts=tiny.COUNTS, **training):
    prepared = prepare_tiny(method, counts, training=training)
    samples = prepared.resources.samples
    return prepared, [
        {name: set(pools[client].tolist()) for name, pools in samples.parts.items()}
        for client in range(len(counts))
    ]


def test_held_out_samples_are_neither_trained_on_nor_counted():
    whole, before = parts("fedfomo")
    prepared, after = parts("fedfomo", validation=0.25)
    for client, (old, new) in enumerate(zip(before, after, strict=True)):
        own = old["train"] | old["validation"]
        assert len(new["selection"]) == round(0.25 * len(own)) and not old["selection"]
        assert sum(
            map(len, (new["train"], new["validation"], new["selection"]))
        ) == len(own)
        assert (
            len(new["train"])
            == prepared.setup.counts[client].sum()
            < whole.setup.counts[client].sum()
        )


@pytest.mark.slow
def test_the_best_round_is_the_best_on_them_and_its_numbers_are_of_test_samples(played):
    run = played(
        "fedavg",
        rounds=6,
        training=HELD_OUT,
        evaluation={"metric": "loss"},
        checkpoint={"best": True},
    )
    chosen, shown = (
        run.results.values[f"{column}/loss"] for column in ("validation/pre", "pre")
    )
    best = int(chosen.argmin())
    assert run.summary.best["round"] == best + 1
    assert run.summary.best["pre"] == shown[best]
    assert run.summary.best_by == "validation"
    assert run.summary.best_validation == pytest.approx(chosen[best])
    assert "chosen on validation samples" in tables.write_legend([run]).replace(
        "\n", " "
    )
    assert run.results.values["clients/validation/pre/total"][0].tolist() == [
        3,
        3,
        3,
        4,
        5,
    ]
    kept = find_latest(run.folder / "checkpoints").best
    assert kept.meta["number"] == chosen[:-1].min()
    assert kept.round == chosen[:-1].argmin()


@pytest.mark.slow
def test_test_samples_decide_where_they_are_asked_to(played):
    run = played(
        "fedavg", training=HELD_OUT, evaluation={"metric": "loss", "best_by": "test"}
    )
    assert run.summary.best["pre"] == run.accuracy("pre").min()
    assert run.summary.best_by == "test"
    assert "chosen on test samples" in tables.write_legend([run]).replace("\n", " ")
    assert run.summary.best_validation != run.summary.best["pre"]


def test_a_client_with_one_sample_trains_on_it_and_has_nothing_to_choose_on(federate):
    played = federate("fedavg", [[1, 0, 0, 0], [4, 4, 0, 0]], training=HELD_OUT)
    values = played.values
    assert values["clients/validation/pre/total"].tolist() == [[0, 2]] * 4
    assert np.isfinite(values["validation/pre/weighted"]).all()
    assert np.isfinite(values["validation/pre/loss"]).all()


def test_by_default_nothing_is_held_out():
    first = tiny.parse("fedavg")
    assert measures.find_best_by(first.resolved()) == "test"
    with expect_refusal(r"best_by = 'validation': .*training\.validation = "):
        tiny.parse("fedavg", evaluation={"best_by": "validation"})
