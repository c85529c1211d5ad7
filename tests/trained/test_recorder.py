"""Fleets that record the scored models of a replayed round."""

import pytest
import torch


@pytest.mark.slow
def test_a_replayed_round_records_the_scored_models_and_computes_no_scores(played):
    run = played("fedavg")
    [fleet] = run.models.replay.play(3, False, [1])
    assert {"pre", "post"} <= set(fleet.models) and not fleet.results.scores
    state = run.model(1, "post", at=3).state_dict()
    row = torch.cat([state[name].flatten() for name in fleet.layout.names])
    assert torch.equal(fleet.models["post"].rows[0], row)
    assert not torch.equal(fleet.models["pre"].rows.flatten()[: len(row)], row)
