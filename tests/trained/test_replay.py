"""Replayed rounds of a run."""

from dataclasses import replace

import pytest
import torch
from refusals import expect_refusal

from hpcfl.storage.manifest import find_latest
from hpcfl.trained import replay


@pytest.mark.slow
def test_a_few_clients_at_a_time_give_the_same_models(played, monkeypatch):
    run = played("fedavg")
    whole = [one.module.state_dict() for one in run.models.of_clients(range(5), "post")]
    monkeypatch.setattr(replay, "TOGETHER", 2)
    for one, other in zip(run.models.of_clients(range(5), "post"), whole, strict=True):
        assert all(
            torch.equal(tensor, other[name])
            for name, tensor in one.module.state_dict().items()
        )


@pytest.mark.slow
def test_a_state_deleted_between_two_clients_is_refused(played, monkeypatch):
    """The run has continued and removed its checkpoint."""
    monkeypatch.setattr(replay, "TOGETHER", 1)
    run = played("fedphp")
    models = run.models.of_clients(range(5), "pre")
    next(models)
    for path in (run.folder / "checkpoints").glob("clients-*"):
        path.unlink()
    with expect_refusal(r"round 4 .*clients-"):
        next(models)


@pytest.mark.slow
def test_a_newer_checkpoint_of_another_run_is_ignored(played):
    run = played("fedavg", rounds=2)
    newest = find_latest(run.folder / "checkpoints")
    theirs = newest.meta | {"run": "another", "frozen": "other"}
    replace(newest, round=9, meta=theirs).write(run.folder / "checkpoints")
    assert run.model(client=0) is not None


@pytest.mark.slow
def test_data_and_code_that_have_changed_are_noted(played, printed):
    run = played("fedavg")
    newest = find_latest(run.folder / "checkpoints")
    run.model(client=0)
    assert printed() == ""
    changed = dict.fromkeys(newest.meta["inputs"], 1)
    other = replace(newest, meta=newest.meta | {"inputs": changed})
    other.write(run.folder / "checkpoints")
    assert replay.RoundReplay(run.folder, run.config, run.own).prepared
    output = printed()
    assert len(changed) > 1 and all(name in output for name in changed)


def test_only_rounds_with_stored_state_can_be_replayed(played):
    run = played(
        "fedavg", rounds=4, evaluation={"score": "post"}, checkpoint={"every": 9}
    )
    assert run.models.replay.rounds == {1, 4, 5}
    for manifest in (run.folder / "checkpoints").glob("manifest-*3.json"):
        manifest.unlink()
    expected = r"round 4 .* 1, 5; .*every = 1 with checkpoint\.keep = 2 "
    with expect_refusal(expected):
        run.model(client=0)
