"""Best rounds that are chosen on held-out training samples."""

import numpy as np
import pytest
import tiny

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config, measures
from hpcfl.preparation.prepare import prepare
from hpcfl.report import tables
from hpcfl.storage.checkpoint import latest

HELD_OUT = {"lr": 0.5, "validation": 0.25}


def parts(method="fedavg", counts=tiny.COUNTS, **training):
    prepared = prepare(
        config.parse(tiny.table(method, counts, training=training)), OneProcess()
    )
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
    assert (
        run.summary.best["round"] == best + 1 and run.summary.best["pre"] == shown[best]
    )
    assert (
        run.summary.best_by == "validation"
        and "by validation samples" in tables.caption([run])
    )
    assert run.results.values["clients/validation/pre/total"][0].tolist() == [
        3,
        3,
        3,
        4,
        5,
    ]
    kept = latest(run.folder / "checkpoints").best
    assert (
        kept.meta["number"] == chosen[:-1].min() and kept.round == chosen[:-1].argmin()
    )


@pytest.mark.slow
def test_test_samples_decide_where_they_are_asked_to(played):
    run = played(
        "fedavg", training=HELD_OUT, evaluation={"metric": "loss", "best_by": "test"}
    )
    assert (
        run.summary.best["pre"] == run.accuracy("pre").min()
        and run.summary.best_by == "test"
    )
    assert "by test samples" in tables.caption([run])


def test_a_client_with_one_sample_trains_on_it_and_has_nothing_to_choose_on(federate):
    played = federate("fedavg", [[1, 0, 0, 0], [4, 4, 0, 0]], training=HELD_OUT)
    values = played.values
    assert values["clients/validation/pre/total"].tolist() == [[0, 2]] * 4
    assert np.isfinite(values["validation/pre/weighted"]).all()
    assert np.isfinite(values["validation/pre/loss"]).all()


def test_by_default_nothing_is_held_out_and_a_run_is_the_one_that_it_was():
    first = config.parse(tiny.table("fedavg"))
    assert measures.best_by(first.resolved()) == "test"
    identity = first.identity()
    assert (
        "validation" not in identity["training"]
        and "best_by" not in identity["evaluation"]
    )
    assert (
        "validation"
        in config.parse(tiny.table("fedavg", training=HELD_OUT)).identity()["training"]
    )
    with pytest.raises(
        UserError, match=r"nothing is held out to choose on; set training.validation"
    ):
        config.parse(tiny.table("fedavg", evaluation={"best_by": "validation"}))
