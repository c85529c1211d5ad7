"""A step recorder receives every mini-batch and changes nothing."""

import pytest
import torch
from steps import make_step_recorder

pytestmark = pytest.mark.slow  # each plays a run first


def watch(run, round, client, **how):
    """Return the trained columns after each mini-batch of a round by phase, and the
    fleet after it.
    """
    seen = {}

    def look(phase, context):
        seen.setdefault(phase, []).append(context.rows()[0])

    [fleet] = run.models.replay.play(
        round, False, [client], make_step_recorder(look, **how)
    )
    return seen, fleet


def test_recorded_steps_end_with_the_trained_model(played):
    run = played(
        {"name": "cwfedavg", "wdr": 3.0}, training={"momentum": 0.5, "clip": 1.0}
    )
    seen, fleet = watch(run, 3, 1)
    trained = run.model(1, "post").state_dict()
    row = torch.cat([trained[name].flatten() for name in fleet.layout.names])
    assert torch.equal(seen["train"][-1], row)
    batch, samples = run.config["training"]["batch_size"], int(fleet.counts.sum())
    assert len(seen["train"]) == run.config["training"]["epochs"] * -(-samples // batch)


def test_min_epochs_prolongs_a_converged_phase(played):
    run = played({"name": "fedala", "most_epochs": 3})
    short, long = (watch(run, 3, 0, min_epochs={"ala": epochs})[0] for epochs in (1, 3))
    assert len(long["ala"]) == 3 * len(short["ala"])
    assert all(
        torch.equal(one, other)
        for one, other in zip(short["ala"], long["ala"], strict=False)
    )
