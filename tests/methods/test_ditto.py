"""Ditto: methods-2.md §5."""

import numpy as np
import pytest
import torch

from hpcfl.methods.ditto import Ditto

WHOLE = {"batch_size": 100}


@pytest.mark.slow
def test_lambda_zero_equals_local_training(federate):
    free = federate({"name": "ditto", "lam": 0.0}, training=WHOLE)
    alone = federate("local", training={**WHOLE, "epochs": 2})
    torch.testing.assert_close(free.clients["personal"], alone.clients["model"])


def test_the_anchor_is_the_received_model(federate):
    """In round 1 v = w, so the proximal term of the first personal step is zero for any
    λ.
    """
    one = {"rounds": 1, "training": WHOLE}
    weak, strong = (
        {"name": "ditto", "personal_epochs": 1, "lam": lam} for lam in (0.0, 5.0)
    )
    assert torch.equal(
        federate(strong, **one).clients["personal"],
        federate(weak, **one).clients["personal"],
    )
    local = federate({**strong, "anchor": "trained"}, **one).clients["personal"]
    assert not torch.allclose(local, federate(weak, **one).clients["personal"])


def test_personal_steps_are_plain(federate):
    personal = [
        federate({"name": "ditto", "lam": 0.5}, rounds=1, training=extra).clients[
            "personal"
        ]
        for extra in ({}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"})
    ]
    assert torch.equal(personal[0], personal[1])
    assert torch.equal(personal[0], personal[2])


def test_clips_the_personal_gradient_and_not_the_pull(make_fleet):
    """F = Σw, whose gradient has the norm √P: clipped at 1 each of P entries is 1/√P,
    and λ(v − w) = 2·(3 − 1) is added to it. One batch, η = 0.1.
    """
    ends = {}
    for clip in (None, 1.0):
        fleet = make_fleet(
            [[4, 0, 0, 0]],
            lr=0.1,
            lanes=1,
            clip=clip,
        )
        fleet.loss = lambda model, batch, lane: sum(p.sum() for p in model.parameters())
        width = fleet.layout.width
        fleet.state["personal"] = torch.full((1, width), 3.0)
        Ditto(name="ditto", lam=2.0, personal_epochs=1).update(
            fleet, {"model": torch.ones(width)}
        )
        ends[clip] = fleet.state["personal"]
    torch.testing.assert_close(ends[None], torch.full((1, width), 3 - 0.1 * (1 + 4)))
    torch.testing.assert_close(
        ends[1.0], torch.full((1, width), 3 - 0.1 * (width**-0.5 + 4))
    )


def test_stragglers_do_a_share_of_the_personal_epochs_too(make_fleet):
    """With half of the work a straggler trains 1 + ⌊E/2⌋ of E epochs: 2 of 2, and 3 of
    5 personal ones.
    """
    ends = []
    for personal_epochs, pace in ((5, np.array([0.5])), (3, None)):
        fleet = make_fleet([[4, 3, 0, 0]], epochs=2)
        fleet.pace = pace
        initial = fleet.setup.initial()
        fleet.state["personal"] = initial[None]
        ditto = Ditto(name="ditto", personal_epochs=personal_epochs)
        trained = ditto.local_train(fleet, initial, {"model": initial})
        ends.append((trained, fleet.state["personal"]))
    assert all(map(torch.equal, *ends))


def test_personal_statistics_stay_private_also_where_statistics_are_averaged(
    federate,
):
    played = federate(
        "ditto",
        rounds=1,
        model={"name": "test_fedrep:Normed"},
        training={"buffers": "average"},
    )
    assert "buffers.model" in played.server and "buffers.personal" not in played.server
    assert len(played.clients["buffers.personal"].unique(dim=0)) == 5
